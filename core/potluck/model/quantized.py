"""Matrices that are stored quantised: the tensors that hold one.

The files hold a matrix `X.weight` of such a model as several tensors, or as one whose dtype is packed:

    gptq                X.qweight, X.qzeros, X.scales, X.g_idx      (AutoGPTQ and GPTQModel: formats
                                                                    `gptq` and `gptq_v2`; AutoRound)
    awq                 X.qweight, X.qzeros, X.scales               (AutoAWQ, version GEMM; AutoRound)
    fp8, fbgemm_fp8,    X.weight, X.weight_scale_inv or X.weight_scale    (DeepSeek, Qwen; AutoFP8;
    modelopt, mxfp8                                                       NVIDIA's Model Optimizer)
    modelopt (NVFP4)    X.weight, X.weight_scale, X.weight_scale_2
    compressed-tensors  X.weight, X.weight_scale, or X.weight_packed, X.weight_scale, X.weight_zero_point,
                        X.weight_g_idx, X.weight_shape, X.weight_global_scale           (llm-compressor)
    bitsandbytes        X.weight, X.weight.absmax, X.weight.quant_map, X.weight.quant_state… in 4 bits, and
                        X.weight.nested_… if absmax is quantised too; X.weight, X.SCB in 8
    mlx                 X.weight, X.scales, X.biases                (mlx-lm, mlx-vlm, LM Studio)
    mxfp4               X.blocks, X.scales, of the experts alone    (OpenAI; see `stacked.py`)
    gguf                X.weight, in blocks of one of llama.cpp's types

The files say themselves which matrices are quantised, and the lists of exceptions in the config are not
read: a matrix that is stored in plain numbers is read as plain numbers. A model may store matrices in several
ways (`others`): which one a matrix has, its tensors show. Scales of activations are not read, because the
kernels quantise activations by their own values. `quantization_config.py` reads the config. `gguf` and `plain`
are no `quant_method` of the Hub: `gguf/config.py` and `consolidated.py` write them, `plain` for numbers in
another order of rows.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from potluck.model.formats import BLOCK_INPUTS

Shape = tuple[int, ...]
Method = Literal[
    "gptq",
    "awq",
    "fp8",
    "fp4",
    "integers",
    "packed",
    "bitsandbytes",
    "mlx",
    "mxfp4",
    "gguf",
    "plain",
]
"""How a matrix is stored; `integers` (a byte each) and `packed` (in 32-bit words) are compressed-tensors'."""

Converted = Literal["grouped", "tiled"]
"""How llama.cpp's converter writes a delta net: what belongs to a key head stays side by side, or not."""

MatrixRole = Literal["qkv", "output", "gate_up", "down"]
"""Matrices of a layer, or of its experts, that share a format: some are multiplied as one."""

WEIGHT = ".weight"
TRANSPOSED = ".weight_t"  # of a matrix that is stored as (in, out), in plain numbers
GGUF = "GGUF_"  # before the name of a type of llama.cpp: the dtype of a tensor of such blocks
MAX_GROUP = 1 << 20  # inputs; models have 128 or 32
_MATRIX = re.compile(r"model\.layers\.(\d+)\..*\.(\w+)\.weight$")
_ROLES: Mapping[str, MatrixRole] = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "qkv_proj": "qkv", "o_proj": "output",
    "q_a_proj": "qkv", "q_b_proj": "qkv", "kv_a_proj_with_mqa": "qkv",
    "gate_proj": "gate_up", "up_proj": "gate_up", "gate_up_proj": "gate_up", "down_proj": "down",
    "w1": "gate_up", "w3": "gate_up", "w2": "down",
    "in_proj": "qkv", "in_proj_qkvz": "qkv", "in_proj_qkv": "qkv", "in_proj_z": "qkv",
    "out_proj": "output", "input_linear": "gate_up", "output_linear": "down",
}  # fmt: skip
ROLES: tuple[MatrixRole, ...] = ("qkv", "output", "gate_up", "down")
_FLOATS = ("F16", "BF16", "F32")
_POWERS = ("F8_E8M0", "U8")  # scales that are powers of two; programs write the byte as either
_MLX_BITS = (2, 3, 4, 5, 6, 8)
_MLX_GROUPS = (16, 32, 64, 128)  # inputs
_BITSANDBYTES_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # weights
_MOST_NOTES = 1 << 16  # bytes of a tensor with JSON; they have about 200
_SUFFIXES = frozenset(
    {
        ".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_scale",
        ".weight_scale_inv", ".weight_zero_point", ".weight_g_idx", ".weight_scale_2",
        ".weight_global_scale", ".SCB", ".biases", ".global_scale", ".blocks", TRANSPOSED,
    }
)  # fmt: skip

# Inputs and bytes of a block (ggml-common.h of llama.cpp), for the types in use that `gguf.quants` can read.
GGUF_BLOCKS: Mapping[str, tuple[int, int]] = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "IQ3_S": (256, 110), "IQ3_XXS": (256, 98),
    "IQ2_S": (256, 82), "IQ2_XS": (256, 74), "IQ2_XXS": (256, 66), "MXFP4": (32, 17),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How a model's quantised matrices are stored."""

    method: Method
    bits: int = 8  # of most of the weights
    is_symmetric: bool = True  # all zero points are the middle
    is_reordered: bool = False  # inputs of a group do not stand side by side ("act-order")
    group_size: int | None = None  # inputs that share a scale; None: all of a row
    zero_offset: int = 0  # to be added to stored zero points: 1 in GPTQ's first format
    block: tuple[int, int] | None = None  # rows and inputs that share a scale (fp8)
    # Rows of queries and keys are in the order of llama.cpp's rope.
    interleaved_heads: bool = False
    norms_are_whole: bool = False  # norms hold the whole factor, also where a family adds one
    delta_net: Converted | None = None
    is_affine: bool = True  # value = scale x integer - offset
    higher_precision: frozenset[tuple[int, MatrixRole]] = frozenset()
    """Layers and roles of the matrices that are stored in more than 4 bits, where most have 4 with offsets."""
    has_mxfp4_experts: bool = False  # all matrices of experts are MXFP4
    has_coarse_head: bool = False  # the head is stored in 4 bits with offsets too
    has_super_blocks: bool = (
        False  # what has offsets is Q4_K: scales and offsets are multiples of steps
    )
    others: tuple["Quantization", ...] = ()  # how other matrices of the model are stored

    @property
    def ways(self) -> tuple["Quantization", ...]:
        """All ways in which matrices of the model are stored, this one first."""
        return (self, *self.others)

    @property
    def fits_offsets(self) -> bool:
        """True if the source is asymmetric int4 with groups divisible by 32, or has fewer bits and offsets of its own."""
        in_groups = (self.group_size or 0) % BLOCK_INPUTS == 0 and not self.is_reordered
        has_offsets = self.bits == 4 or (self.bits < 4 and self.method == "mlx")
        return has_offsets and not self.is_symmetric and self.is_affine and in_groups

    @property
    def is_even(self) -> bool:
        """True if most weights are integers of at most 4 bits without offsets, in groups that `int4` holds exactly."""
        in_groups = (self.group_size or 0) % BLOCK_INPUTS == 0 and not self.is_reordered
        return self.bits <= 4 and self.is_symmetric and self.is_affine and in_groups

    def higher_precision_roles(self, layer: int) -> frozenset[MatrixRole]:
        """The roles in this layer whose matrices are stored in higher precision than most."""
        return frozenset(role for role in ROLES if (layer, role) in self.higher_precision)

    def has_higher_precision(self, name: str) -> bool:
        """Whether the matrix of this name is stored in higher precision than most."""
        return bool(self.higher_precision) and role_of(name) in self.higher_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """One of the tensors that a matrix is stored in."""

    suffixes: tuple[str, ...]  # its name has one of these in place of `.weight`
    dtypes: tuple[str, ...]  # it has one of these
    shapes: tuple[Shape, ...]  # and one of these
    optional: bool = False
    most: int = 0  # bytes of a vector of any length, if there are no shapes


def role_of(name: str) -> tuple[int, MatrixRole] | None:
    """Layer and role of the matrix of this name; None: it is none of a layer."""
    found = _MATRIX.search(name)
    role = _ROLES.get(found[2]) if found is not None else None
    return None if found is None or role is None else (int(found[1]), role)


def stored_parts(quantization: Quantization, shape: Shape) -> tuple[StoredPart, ...]:
    """The tensors in which a quantised matrix (out, in) is stored.

    Empty for GGUF, which stores it as one tensor whose dtype says everything, and for other shapes.
    """
    if len(shape) != 2:
        return ()
    rows, inputs = shape
    groups = -(-inputs // (quantization.group_size or inputs))
    row_words, input_words = (-(-count * quantization.bits // 32) for count in shape)
    order = _part(".g_idx", ("I32",), (inputs,), optional=True)
    match quantization.method:
        case "gptq":
            return (
                _part(".qweight", ("I32",), (input_words, rows)),
                _part(".qzeros", ("I32",), (groups, row_words)),
                _part(".scales", _FLOATS, (groups, rows)),
                order,
            )
        case "awq":
            return (
                _part(".qweight", ("I32",), (inputs, row_words)),
                _part(".qzeros", ("I32",), (groups, row_words)),
                _part(".scales", _FLOATS, (groups, rows)),
            )
        case "fp8":
            return (_part(WEIGHT, ("F8_E4M3",), shape), _byte_scale(quantization.block, shape))
        case "fp4":
            return (
                _either((".weight_packed", WEIGHT), ("U8", "I8"), (rows, -(-inputs // 2))),
                _part(".weight_scale", ("F8_E4M3", *_POWERS), (rows, groups)),
                _either(
                    (".weight_scale_2", ".weight_global_scale"), ("F32",), (), (1,), optional=True
                ),
            )
        case "integers":
            zeros = ((rows, groups), (rows,), (1,), ())
            return (
                _part(WEIGHT, ("I8",), shape),
                _byte_scale((1, quantization.group_size or inputs), shape, more=(".SCB",)),
                _part(".weight_zero_point", ("I8",), *zeros, optional=True),
            )
        case "bitsandbytes":
            return _bitsandbytes_parts(rows * inputs)
        case "mlx":
            words = tuple((rows, inputs * bits // 32) for bits in _MLX_BITS)
            scales = tuple((rows, -(-inputs // group)) for group in _MLX_GROUPS)
            return (
                _part(WEIGHT, ("U32",), *words),
                _part(".scales", (*_FLOATS, "U8"), *scales),
                _part(".biases", _FLOATS, *scales, optional=True),
                _part(".global_scale", ("F32",), (), (1,), optional=True),
            )
        case "packed":
            words = _part(".weight_packed", ("I32",), (rows, input_words))
            scales = _part(".weight_scale", _FLOATS, (rows, groups))
            order = _part(".weight_g_idx", ("I32",), (inputs,), optional=True)
            if quantization.is_symmetric:
                return (words, scales, order)
            return (
                words,
                scales,
                _part(".weight_zero_point", ("I32",), (row_words, groups)),
                order,
            )
        case "mxfp4":
            groups = -(-inputs // BLOCK_INPUTS)
            return (
                _part(".blocks", ("U8",), (rows, groups, BLOCK_INPUTS // 2)),
                _part(".scales", ("U8",), (rows, groups)),
            )
        case "gguf" | "plain":
            return ()


def way_of(
    quantization: Quantization, shape: Shape, find: Callable[[str], tuple[str, Shape] | None]
) -> Quantization | None:
    """In which of the model's ways a matrix is stored; None: in none of them.

    Args:
        quantization: of the model.
        shape: of the matrix.
        find: returns dtype and shape of the stored tensor whose name has this in place of `.weight`.
    """
    for way in quantization.ways:
        needed = [part for part in stored_parts(way, shape) if not part.optional]
        if needed and all(any(_fits(part, find(s)) for s in part.suffixes) for part in needed):
            return way
    return None


def _fits(part: StoredPart, found: tuple[str, Shape] | None) -> bool:
    return found is not None and found[0] in part.dtypes and found[1] in (part.shapes or found[1:])


def weight_name(stored: str) -> str:
    """The name of the model's tensor that a stored tensor is, or is a part of."""
    whole, mark, _ = stored.rpartition(WEIGHT + ".")
    if mark:  # bitsandbytes names the parts below the matrix
        return whole + WEIGHT
    prefix, dot, last = stored.rpartition(".")
    return prefix + WEIGHT if dot + last in _SUFFIXES else stored


def gguf_bytes(dtype: str, shape: Shape) -> int | None:
    """The bytes of a tensor of GGUF blocks; None: an unknown type, or rows of no whole blocks."""
    block = GGUF_BLOCKS.get(dtype.removeprefix(GGUF))
    if block is None or not dtype.startswith(GGUF) or not shape or shape[-1] % block[0]:
        return None
    count = shape[-1] // block[0] * block[1]
    for size in shape[:-1]:
        count *= size
    return count


def _part(
    suffix: str, dtypes: tuple[str, ...], *shapes: Shape, optional: bool = False
) -> StoredPart:
    return _either((suffix,), dtypes, *shapes, optional=optional)


def _either(
    suffixes: tuple[str, ...], dtypes: tuple[str, ...], *shapes: Shape, optional: bool = False
) -> StoredPart:
    return StoredPart(suffixes=suffixes, dtypes=dtypes, shapes=shapes, optional=optional)


def _byte_scale(
    block: tuple[int, int] | None, shape: Shape, more: tuple[str, ...] = ()
) -> StoredPart:
    """The scales of 8-bit weights: one for each block, one for each row, or one for the matrix."""
    rows, inputs = shape
    shapes = ((), (1,), (1, 1), (rows, 1), (rows,))
    if block is not None and block != (1, inputs):
        shapes = ((-(-rows // block[0]), -(-inputs // block[1])),)
    # `weight_scale_inv` multiplies too, in spite of its name.
    suffixes = (".weight_scale", ".weight_scale_inv", *more)
    return StoredPart(suffixes=suffixes, dtypes=(*_FLOATS, *_POWERS), shapes=shapes)


def _bitsandbytes_parts(weights: int) -> tuple[StoredPart, ...]:
    """The parts of a matrix of so many weights, one after the other, in blocks with a scale each."""
    blocks = tuple((-(-weights // block),) for block in _BITSANDBYTES_BLOCKS)
    of_blocks = {(-(-count // 256),) for (count,) in blocks}
    below = WEIGHT + "."
    notes = StoredPart(
        suffixes=tuple(f"{below}quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")),
        dtypes=("U8",),
        shapes=(),
        most=_MOST_NOTES,
    )
    return (
        _part(WEIGHT, ("U8",), (-(-weights // 2), 1)),
        _part(below + "absmax", ("F32", "U8"), *blocks),
        _part(below + "quant_map", ("F32",), (16,)),
        notes,
        _part(below + "nested_absmax", ("F32",), *of_blocks, optional=True),
        _part(below + "nested_quant_map", ("F32",), (256,), optional=True),
    )
