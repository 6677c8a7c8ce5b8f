"""Every kernel of every path compiles, for processors that are not this one too."""

import struct
from collections.abc import Hashable, Iterable
from dataclasses import replace

import pytest
from llvmlite import binding
from weight_formats import every_format

from potluck.engine.kernels.attending.attention import Heads, attended_part
from potluck.engine.kernels.attending.prefill_kernel import emit_attend_many
from potluck.engine.kernels.decoding.head_kernel import HeadShape, emit_head
from potluck.engine.kernels.decoding.layer_kernel import emit_decode
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.library import Emit, emit_kernel, optimise, target_machine
from potluck.engine.kernels.mixtures.moe_kernel import emit_choose_many
from potluck.engine.kernels.paths import PATHS, Path, usable_paths
from potluck.engine.kernels.products.float_kernel import emit_float_product
from potluck.engine.kernels.products.lookup_kernel import emit_lookup
from potluck.engine.kernels.products.matrix_kernel import emit_arrange, emit_matrix_product
from potluck.engine.kernels.products.packing_kernel import emit_pack
from potluck.engine.kernels.products.product_kernel import emit_product
from potluck.engine.kernels.products.quantise_kernel import emit_quantise
from potluck.engine.kernels.products.row_kernel import emit_rows
from potluck.engine.kernels.stream_kernel import READ_AHEAD, emit_read
from potluck.engine.kernels.threads_kernel import emit_serve
from potluck.engine.kernels.writing.ir_types import KIND_F16, KIND_INT8
from potluck.model.formats import BF16, INT4, INT4_OFFSET, INT8, PACKED_FORMATS, PackedFormat
from potluck.model.routing import Routing

# Windows wants a call to a library where a stack frame is larger than a page: none may be.
TRIPLES = ["x86_64-pc-windows-msvc-elf", "aarch64-pc-windows-msvc-elf"]
INSTRUCTION = {
    "avx512bf16": "vpdpbusd",
    "avx512vnni": "vpdpbusd",
    "avxvnni": "vpdpbusd",
    "avx2": "vpmaddubsw",
    "i8mm": "usdot",
    "dotprod": "sdot",
}


def of_paths(paths: Iterable[Path]) -> pytest.MarkDecorator:
    cases = [
        pytest.param(path, triple, id=f"{path.name}-{triple}")
        for path in paths
        for triple in TRIPLES
        if triple.startswith(
            path.architecture or TRIPLES[0]
        )  # every Arm has a better path than that of any
    ]
    return pytest.mark.parametrize(("path", "triple"), cases)


# Many large heads on one key head: what needs most of the stack.
HEADS = Heads(
    heads=8, kv_heads=1, head_dim=256, rotary_dim=256, qk_norm="head", epsilon=1e-5, scale=0.1,
    softcap=50.0, cache_kind=KIND_INT8,
)  # fmt: skip
ODD_HEADS = Heads(
    heads=6, kv_heads=2, head_dim=40, rotary_dim=20, qk_norm="projection", epsilon=1e-5, scale=0.1,
    softcap=None, cache_kind=KIND_F16,
)  # fmt: skip
PAIRED_HEADS = replace(HEADS, cache_kind=KIND_F16, has_pairs=True)
LAYER = LayerShape(
    hidden=80, intermediate=112, mixer=HEADS, has_norms_before=True,
    has_norms_after=True, epsilon=1e-5, multiplier=1.0,
    activation="gelu_pytorch_tanh", qkv_format=INT8, output_format=INT4,
    gate_up_format=INT4_OFFSET, down_format=INT8,
)  # fmt: skip
FLOAT_LAYER = replace(
    LAYER, mixer=ODD_HEADS, has_norms_after=False, multiplier=0.3, activation="silu",
    intermediate=5000, qkv_format=BF16, output_format=BF16, gate_up_format=BF16, down_format=BF16,
)  # fmt: skip
MOE_LAYER = replace(
    LAYER,
    mixer=replace(PAIRED_HEADS, heads=2, head_dim=40, rotary_dim=20, qk_norm=None),
    has_norms_after=False,
    activation="silu",
    routing=Routing(count=21, per_token=3, normalise=True),
    sums_mixer=True,  # as a rank of a group has it
    sums_feed_forward=True,
)
# What writes a kernel, and for which parameters. In those of decoding are also rope, attention of one token,
# the running of a job, and products and gates that none of the others has.
KERNELS: list[tuple[Emit, *tuple[Hashable, ...]]] = [
    *((emit_product, one) for one in PACKED_FORMATS),
    *((emit_pack, one) for one in PACKED_FORMATS),
    *((emit_lookup, one) for one in PACKED_FORMATS),
    (emit_quantise, "plain"),
    (emit_quantise, "gelu_pytorch_tanh"),
    (emit_float_product, KIND_F16, KIND_F16, 4),
    (emit_rows, "normed", 1e-5),
    (emit_rows, "gelu_pytorch_tanh"),
    (emit_rows, "softcapped", 30.0),
    (emit_arrange,),
    (emit_matrix_product,),
    (emit_choose_many, Routing(count=21, per_token=3, normalise=True)),
    (emit_attend_many, attended_part(HEADS)),
    (emit_attend_many, attended_part(ODD_HEADS)),
    (emit_attend_many, attended_part(PAIRED_HEADS)),
    (emit_head, HeadShape(hidden=80, rows=131, weight_format=INT4, epsilon=1e-5)),
    (emit_decode, LAYER),
    (emit_decode, FLOAT_LAYER),
    (emit_decode, MOE_LAYER),
    (emit_serve,),
    (emit_read,),
    (emit_read, READ_AHEAD[1]),
]

# Paths that differ from another one only in products: by how they multiply integers, and by how far ahead they prefetch.
# The pieces of all other kernels are the same ones.
ALIKE = {"avxvnni": "avx2", "i8mm": "neon", "dotprod": "neon"}
PRODUCTS = (emit_product, emit_lookup, emit_float_product)


def compiled(
    path: Path, triple: str, emit: Emit, *parameters: Hashable
) -> tuple[binding.TargetMachine, binding.ModuleRef]:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = target_machine(path, triple)
    return machine, optimise(emit_kernel("kernel", path, emit, *parameters), machine)


def test_layers_share_their_attention_if_they_differ_in_norms_and_rope_alone() -> None:
    other = replace(
        HEADS, rotary_dim=0, qk_norm="projection", epsilon=0.5, value_norm=True, value_scale=2.0
    )

    assert other != HEADS
    assert attended_part(other) == attended_part(HEADS)
    assert attended_part(replace(HEADS, scale=0.7)) != attended_part(HEADS)


@pytest.mark.parametrize(("path", "other"), ALIKE.items())
def test_paths_of_one_processor_differ_only_in_products(path: str, other: str) -> None:
    one, another = (next(each for each in PATHS if each.name == name) for name in (path, other))
    names = ("name", "needs", "features", "dot", "tokens", "reads_near")

    assert replace(one, **{name: getattr(another, name) for name in names}) == another


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
@of_paths(PATHS)
def test_every_kernel_compiles_and_needs_no_library(path: Path, triple: str) -> None:
    """What a C library has here may be missing on another computer."""
    is_alike = path.name in ALIKE
    for kernel in KERNELS:
        if is_alike and kernel[0] not in PRODUCTS:
            continue
        machine, module = compiled(path, triple, *kernel)

        assert undefined_symbols(machine.emit_object(module)) == set(), kernel


@every_format
@of_paths(path for path in PATHS if path.name in INSTRUCTION)
def test_products_use_the_instruction_of_their_path(
    path: Path, triple: str, weight_format: PackedFormat
) -> None:
    of_one_token = (1,)
    machine, module = compiled(path, triple, emit_product, weight_format, of_one_token)

    code = machine.emit_assembly(module)

    assert code.count(f"\t{INSTRUCTION[path.name]}") >= 8
    assert ("zmm" in code) == (path.name in ("avx512bf16", "avx512vnni"))


def test_the_path_is_chosen_by_features() -> None:
    v3 = {"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt"}
    v4 = v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

    def best(architecture: str, *features: str) -> str:
        return usable_paths(architecture, features)[0].name

    assert best("x86_64", *v4, "avx512vnni", "avxvnni") == "avx512vnni"
    assert best("x86_64", *v4, "avx512vnni", "avx512bf16") == "avx512bf16"
    assert best("x86_64", *v4, "avx512bf16") == "avx2"
    assert best("x86_64", *v4) == "avx2"
    assert best("x86_64", *v3, "avxvnni") == "avxvnni"
    assert best("x86_64", *v3) == "avx2"
    assert best("x86_64", *(v3 - {"f16c"})) == "generic"
    assert best("aarch64", "neon", "dotprod", "i8mm") == "i8mm"
    assert best("aarch64", "neon", "dotprod") == "dotprod"
    assert best("aarch64", "neon") == "neon"
    assert best("riscv64", *v4, "avx512vnni") == "generic"


def test_what_a_kernel_is_written_for_is_named_alike_in_every_process() -> None:
    """A set is written in another order in each process, and an object with its address."""
    for emit, *parameters in KERNELS:
        written = repr((emit.__qualname__, parameters))
        assert not any(word in written for word in ("{", "0x", "<")), written
