"""Every kernel of every path compiles, for processors that are not this one too."""

import struct
from dataclasses import replace
from functools import partial

import pytest
from llvmlite import binding
from weight_formats import every_format

from potluck.engine.kernels.attention import Heads
from potluck.engine.kernels.attention_kernel import emit_attend
from potluck.engine.kernels.float_kernel import emit_float_product
from potluck.engine.kernels.head_kernel import HeadShape, emit_head
from potluck.engine.kernels.ir_types import KIND_BF16, KIND_F16, KIND_INT8
from potluck.engine.kernels.layer_kernel import LayerShape, emit_decode
from potluck.engine.kernels.library import KERNELS, emit_kernel, optimise, target_machine
from potluck.engine.kernels.moe_kernel import MoeShape
from potluck.engine.kernels.paths import PATHS, Path, usable_paths
from potluck.engine.kernels.prefill_kernel import emit_attend_many
from potluck.engine.kernels.rope_kernel import emit_rope_and_cache
from potluck.model.formats import BF16, INT4, INT4_OFFSET, INT8, PackedFormat

# Windows wants a call to a library where a stack frame is larger than a page: none may be.
TRIPLES = ["x86_64-pc-windows-msvc-elf", "aarch64-pc-windows-msvc-elf"]
INSTRUCTION = {
    "avx512vnni": "vpdpbusd",
    "avxvnni": "vpdpbusd",
    "avx2": "vpmaddubsw",
    "i8mm": "usdot",
    "dotprod": "sdot",
}
CASES = [
    pytest.param(path, triple, id=f"{path.name}-{triple}")
    for path in PATHS
    for triple in TRIPLES
    if triple.startswith(path.architecture)
]


# Many large heads on one key head: what needs most of the stack.
HEADS = Heads(
    heads=8, kv_heads=1, head_dim=256, rotary_dim=256, qk_norm="head", epsilon=1e-5, scale=0.1,
    softcap=50.0, cache_kind=KIND_INT8,
)  # fmt: skip
ODD_HEADS = Heads(
    heads=6, kv_heads=2, head_dim=40, rotary_dim=20, qk_norm="projection", epsilon=1e-5, scale=0.1,
    softcap=None, cache_kind=KIND_F16,
)  # fmt: skip
LAYER = LayerShape(
    hidden=80, intermediate=112, attention=HEADS, has_norms_before=True,
    has_norms_after=True, epsilon=1e-5, multiplier=1.0,
    activation="gelu_pytorch_tanh", qkv_format=INT8, output_format=INT4,
    gate_up_format=INT4_OFFSET, down_format=INT8,
)  # fmt: skip
OTHER_LAYER = replace(
    LAYER,
    attention=ODD_HEADS,
    has_norms_after=False,
    multiplier=0.3,
    activation="silu",
    down_format=INT4,
)
FLOAT_LAYER = replace(
    OTHER_LAYER, intermediate=5000, qkv_format=BF16, output_format=BF16, gate_up_format=BF16,
    down_format=BF16,
)  # fmt: skip
MOE_LAYER = replace(
    OTHER_LAYER, multiplier=1.0, moe=MoeShape(count=21, per_token=3, normalise=True)
)
SHAPED = {
    "attend": partial(emit_attend, shape=HEADS),
    "attend_odd": partial(emit_attend, shape=ODD_HEADS),
    "attend_many": partial(emit_attend_many, shape=HEADS),
    "attend_many_odd": partial(emit_attend_many, shape=ODD_HEADS),
    "rope": partial(emit_rope_and_cache, shape=HEADS),
    "rope_odd": partial(emit_rope_and_cache, shape=ODD_HEADS),
    "float_bf16": partial(emit_float_product, kind=KIND_BF16),
    "float_f16": partial(emit_float_product, kind=KIND_F16, inputs=KIND_F16, tokens=8),
    "head": partial(
        emit_head, shape=HeadShape(hidden=80, rows=131, weight_format=INT4, epsilon=1e-5)
    ),
    "decode": partial(emit_decode, shape=LAYER),
    "decode_other": partial(emit_decode, shape=OTHER_LAYER),
    "decode_floats": partial(emit_decode, shape=FLOAT_LAYER),
    "decode_moe": partial(emit_decode, shape=MOE_LAYER),
}


def compiled(name: str, path: Path, triple: str) -> tuple[binding.TargetMachine, binding.ModuleRef]:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = target_machine(path, triple)
    return machine, optimise(emit_kernel(name, path, SHAPED.get(name)), machine)


def undefined_symbols(elf: bytes) -> set[str]:
    """Names that an ELF object wants from elsewhere (elf(5): Elf64_Ehdr, Elf64_Shdr, Elf64_Sym)."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, table + size * i) for i in range(count)]
    symbols = next(section for section in sections if section[1] == 2)  # SHT_SYMTAB
    names = sections[symbols[6]][4]
    undefined: set[str] = set()
    for offset in range(symbols[4] + 24, symbols[4] + symbols[5], 24):
        name, _, _, section = struct.unpack_from("<IBBH", elf, offset)
        if section == 0:
            undefined.add(elf[names + name : elf.index(b"\0", names + name)].decode())
    return undefined


@pytest.mark.slow
@pytest.mark.parametrize(("path", "triple"), CASES)
def test_every_kernel_compiles_and_needs_no_library(path: Path, triple: str) -> None:
    """What a C library has here may be missing on another computer."""
    for kernel in (*KERNELS, *SHAPED):
        machine, module = compiled(kernel, path, triple)

        assert undefined_symbols(machine.emit_object(module)) == set(), kernel


@every_format
@pytest.mark.parametrize(
    ("path", "triple"), [case for case in CASES if case.values[0] is not PATHS[-1]]
)
def test_products_use_the_instruction_of_their_path(
    path: Path, triple: str, weight_format: PackedFormat
) -> None:
    machine, module = compiled(f"product_{weight_format.name}", path, triple)

    code = machine.emit_assembly(module)

    assert code.count(f"\t{INSTRUCTION[path.name]}") >= 64
    assert ("zmm" in code) == (path.name == "avx512vnni")


def test_the_path_is_chosen_by_features() -> None:
    v3 = {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"}
    v4 = v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

    def best(architecture: str, *features: str) -> str:
        return usable_paths(architecture, features)[0].name

    assert best("x86_64", *v4, "avx512vnni", "avxvnni") == "avx512vnni"
    assert best("x86_64", *v4) == "avx2"
    assert best("x86_64", *v3, "avxvnni") == "avxvnni"
    assert best("x86_64", *v3) == "avx2"
    assert best("x86_64", *(v3 - {"f16c"})) == "generic"
    assert best("aarch64", "neon", "dotprod", "i8mm") == "i8mm"
    assert best("aarch64", "neon", "dotprod") == "dotprod"
    assert best("aarch64", "neon") == "generic"
    assert best("riscv64", *v4, "avx512vnni") == "generic"
