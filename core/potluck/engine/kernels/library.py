"""The kernels compiled for one path, and how Python calls them.

Each is compiled when first asked for, once in a process, unless it is on disk (`files.py`); what it was
compiled from is let go, and the machine code alone linked. A call goes through `ctypes`, which releases the interpreter's lock while the
kernel runs. The kernels check nothing: their callers do.
"""

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Hashable
from functools import cache, cached_property
from hashlib import sha256
from typing import TypeAlias, cast

from llvmlite import binding, ir

from potluck.engine.kernels.files import CompiledCode, KernelFiles
from potluck.engine.kernels.paths import PATHS, Path, host_triple
from potluck.heap import without_collection

logger = logging.getLogger(__name__)

Kernel: TypeAlias = Callable[..., int]

Emit: TypeAlias = Callable[..., ir.Function]
"""Writes a kernel: takes a module, the kernel's name, a path, and what else the kernel is written for."""

_C_TYPES = {
    "float": ctypes.c_float,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "ptr": ctypes.c_void_p,
    "void": None,
}


def emit_kernel(name: str, path: Path, emit: Emit, *parameters: Hashable) -> ir.Module:
    """Write a kernel and the functions that it calls, as LLVM IR."""
    module = ir.Module(name=f"potluck_{path.name}_{name}")
    emit(module, name, path, *parameters)
    return module


def target_machine(path: Path, triple: str) -> binding.TargetMachine:
    """Return what compiles IR for the processors of a path."""
    target = binding.Target.from_triple(triple)
    return target.create_target_machine(cpu=path.cpu, features=path.features, opt=3, jit=True)


def optimise(module: ir.Module, machine: binding.TargetMachine) -> binding.ModuleRef:
    """Check the IR, turn variables into registers, and simplify."""
    module.triple = machine.triple
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    # The kernels are vectorised and unrolled as they are written.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return parsed


class Library:
    """Callable kernels of a path; their code lives as long as this does.

    Attributes:
        files: where kernels are kept on disk; None: nowhere.
    """

    def __init__(self, path: Path, files: KernelFiles | None = None) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self.path = path
        self.files = files
        self._lock = threading.Lock()
        self._compiled: dict[tuple[Hashable, ...], Kernel] = {}

    def get(self, emit: Emit, *parameters: Hashable) -> Kernel:
        """Return the kernel that `emit` writes for these parameters; it is compiled the first time."""
        key = (emit, *parameters)
        if (compiled := self._compiled.get(key)) is None:
            with self._lock:
                compiled = self._compiled.get(key) or self._linked(emit, *parameters)
                self._compiled[key] = compiled
        return compiled

    @cached_property
    def _engine(self) -> binding.ExecutionEngine:
        """What links and keeps machine code. It is given object files, because it would keep the IR of modules."""
        machine = target_machine(self.path, host_triple())
        empty = ir.Module("potluck")
        empty.triple = machine.triple
        return binding.create_mcjit_compiler(binding.parse_assembly(str(empty)), machine)

    def _linked(self, emit: Emit, *parameters: Hashable) -> Kernel:
        name = self._name(emit, *parameters)
        compiled = self.files.recall(name) if self.files is not None else None
        if compiled is None:
            compiled = self._compile(name, emit, *parameters)
            if self.files is not None:
                self.files.keep(name, compiled)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(compiled.code))
        self._engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(*(_C_TYPES[kind] for kind in compiled.kinds))
        return prototype(self._engine.get_function_address(name))

    def _name(self, emit: Emit, *parameters: Hashable) -> str:
        """A name that only this kernel has, in every process of this program."""
        written = repr(
            (emit.__module__, emit.__qualname__, parameters, self.path.name, host_triple())
        )
        return f"kernel_{sha256(written.encode()).hexdigest()[:32]}"

    def _compile(self, name: str, emit: Emit, *parameters: Hashable) -> CompiledCode:
        start = time.perf_counter()
        machine = target_machine(self.path, host_triple())
        with without_collection():
            module = emit_kernel(name, self.path, emit, *parameters)
            code = machine.emit_object(optimise(module, machine))
        signature = module.get_global(name).function_type
        seconds = time.perf_counter() - start
        which = (emit.__name__, *parameters)
        logger.debug("kernel compiled path=%s kernel=%s s=%.2f", self.path.name, which, seconds)
        kinds = (signature.return_type, *signature.args)
        return CompiledCode(kinds=tuple(map(str, kinds)), code=code)


def address_of(kernel: Kernel) -> int:
    """Return the address of a kernel."""
    address = ctypes.cast(cast("ctypes._FuncPointer", kernel), ctypes.c_void_p).value
    assert address is not None
    return address


@cache  # code, not state: what the host's processor can run
def library(name: str) -> Library:
    """Return the kernels of the path of this name."""
    return Library(next(path for path in PATHS if path.name == name))
