"""The kernels compiled for one path, and how Python calls them.

Each is compiled when first asked for, once in a process; what it was compiled from is let go, and the
machine code alone linked. A call goes through `ctypes`, which releases the interpreter's lock while the
kernel runs. The kernels check nothing: their callers do.
"""

import ctypes
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import TypeAlias, cast

from llvmlite import binding, ir

from potluck.engine.kernels.attention import Heads
from potluck.engine.kernels.attention_kernel import emit_attend
from potluck.engine.kernels.float_kernel import emit_float_product
from potluck.engine.kernels.head_kernel import HeadShape, emit_head
from potluck.engine.kernels.layer_kernel import LayerShape, emit_decode
from potluck.engine.kernels.lookup_kernel import emit_lookup
from potluck.engine.kernels.packing_kernel import emit_pack
from potluck.engine.kernels.paths import PATHS, Path, host_triple
from potluck.engine.kernels.pool_kernel import emit_run, emit_serve
from potluck.engine.kernels.prefill_kernel import emit_attend_many
from potluck.engine.kernels.product_kernel import emit_product
from potluck.engine.kernels.quantise_kernel import emit_quantise
from potluck.engine.kernels.rope_kernel import emit_rope_and_cache
from potluck.engine.kernels.stream_kernel import emit_read
from potluck.model.formats import PACKED_FORMATS

logger = logging.getLogger(__name__)

Kernel: TypeAlias = Callable[..., int]
Emit: TypeAlias = Callable[[ir.Module, str, Path], ir.Function]

_C_TYPES = {
    "float": ctypes.c_float,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "ptr": ctypes.c_void_p,
    "void": None,
}


_EMITTERS: Mapping[str, Emit] = {
    "quantise": emit_quantise,
    "silu_quantise": partial(emit_quantise, reading="silu"),
    "gelu_pytorch_tanh_quantise": partial(emit_quantise, reading="gelu_pytorch_tanh"),
    **{f"product_{one.name}": partial(emit_product, weight_format=one) for one in PACKED_FORMATS},
    **{f"pack_{one.name}": partial(emit_pack, weight_format=one) for one in PACKED_FORMATS},
    **{f"lookup_{one.name}": partial(emit_lookup, weight_format=one) for one in PACKED_FORMATS},
    "serve": emit_serve,
    "run": emit_run,
    "read": emit_read,
}
KERNELS = tuple(_EMITTERS)


def emit_kernel(name: str, path: Path, emit: Emit | None = None) -> ir.Module:
    """One kernel and what it calls, as LLVM IR: one of `KERNELS`, or what `emit` writes."""
    module = ir.Module(name=f"potluck_{path.name}_{name}")
    (emit or _EMITTERS[name])(module, name, path)
    return module


def target_machine(path: Path, triple: str) -> binding.TargetMachine:
    """What turns IR into the code of the path's processors."""
    target = binding.Target.from_triple(triple)
    return target.create_target_machine(cpu=path.cpu, features=path.features, opt=3, jit=True)


def optimise(module: ir.Module, machine: binding.TargetMachine) -> binding.ModuleRef:
    """Check the IR, turn variables into registers, and simplify."""
    module.triple = machine.triple
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # The kernels are written as vectors and unrolled as they should be.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


class Library:
    """Callable kernels of a path; their code lives as long as this does."""

    def __init__(self, path: Path) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self.path = path
        self._lock = threading.Lock()
        self._compiled: dict[str, Kernel] = {}

    def __getitem__(self, name: str) -> Kernel:
        """The kernel of this name; compiled if it is the first time."""
        return self._get(name, _EMITTERS[name])

    def float_product(self, kind: int, inputs: int, tokens: int) -> Kernel:
        """Products of `tokens` inputs of a kind with 16-bit floats of a kind, as a piece of the pool."""
        emit = partial(emit_float_product, kind=kind, inputs=inputs, tokens=tokens)
        return self._get(f"float{kind}_{inputs}_{tokens}", emit)

    def attend(self, shape: Heads) -> Kernel:
        """Attention of one token, for heads of this shape."""
        return self._get(f"attend_{_digest(shape)}", partial(emit_attend, shape=shape))

    def attend_many(self, shape: Heads) -> Kernel:
        """Attention of many tokens, for heads of this shape."""
        name = f"attend_many_{_digest(shape)}"
        return self._get(name, partial(emit_attend_many, shape=shape))

    def rope_and_cache(self, shape: Heads) -> Kernel:
        """Norm, rope and caching of some tokens, for heads of this shape."""
        return self._get(f"rope_{_digest(shape)}", partial(emit_rope_and_cache, shape=shape))

    def decode(self, shape: LayerShape) -> Kernel:
        """One token through layers of this shape."""
        return self._get(f"decode_{_digest(shape)}", partial(emit_decode, shape=shape))

    def head(self, shape: HeadShape) -> Kernel:
        """Final norm, logits and the best of them, for a head of this shape."""
        return self._get(f"head_{_digest(shape)}", partial(emit_head, shape=shape))

    def _get(self, name: str, emit: Emit) -> Kernel:
        if (compiled := self._compiled.get(name)) is None:
            with self._lock:
                compiled = self._compiled.get(name) or self._compile(name, emit)
                self._compiled[name] = compiled
        return compiled

    @cached_property
    def _engine(self) -> binding.ExecutionEngine:
        """Links and keeps machine code. It gets object files: given modules, it would keep their IR too."""
        machine = target_machine(self.path, host_triple())
        empty = ir.Module("potluck")
        empty.triple = machine.triple
        return binding.create_mcjit_compiler(binding.parse_assembly(str(empty)), machine)

    def _compile(self, name: str, emit: Emit) -> Kernel:
        start = time.perf_counter()
        machine = target_machine(self.path, host_triple())
        module = emit_kernel(name, self.path, emit)
        code = machine.emit_object(optimise(module, machine))
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        signature = module.get_global(name).function_type
        kinds = (signature.return_type, *signature.args)
        prototype = ctypes.CFUNCTYPE(*(_C_TYPES[str(kind)] for kind in kinds))
        seconds = time.perf_counter() - start
        logger.debug("kernel compiled path=%s name=%s s=%.2f", self.path.name, name, seconds)
        return prototype(self._engine.get_function_address(name))


def address_of(kernel: Kernel) -> int:
    """The address of a kernel."""
    address = ctypes.cast(cast("ctypes._FuncPointer", kernel), ctypes.c_void_p).value
    assert address is not None
    return address


@cache  # a call of a kernel asks for it
def _digest(shape: Heads | LayerShape | HeadShape) -> str:
    """A name for the kernels of this shape."""
    return hashlib.sha256(repr(shape).encode()).hexdigest()[:16]


@cache  # code, not state: what the host's processor can run
def library(name: str) -> Library:
    """The kernels of the path of this name."""
    return Library(next(path for path in PATHS if path.name == name))
