"""Models whose weights are stored quantised: their config, and the tensors that hold a matrix.

The files hold a matrix `X.weight` of such a model as several tensors, or as one whose dtype is packed:

    gptq                X.qweight, X.qzeros, X.scales, X.g_idx      (AutoGPTQ and GPTQModel: formats
                                                                    `gptq` and `gptq_v2`; AutoRound)
    awq                 X.qweight, X.qzeros, X.scales               (AutoAWQ, version GEMM; AutoRound)
    fp8, fbgemm_fp8,    X.weight, X.weight_scale_inv or X.weight_scale    (DeepSeek, Qwen; AutoFP8;
    modelopt                                                              NVIDIA's Model Optimizer)
    compressed-tensors  X.weight, X.weight_scale, or X.weight_packed, X.weight_scale,
                        X.weight_zero_point, X.weight_g_idx, X.weight_shape   (llm-compressor)
    gguf                X.weight, in blocks of one of llama.cpp's types

The files say themselves which matrices are quantised, and the lists of exceptions in the config are not
read: a matrix that is stored in plain numbers is read as plain numbers. Scales of activations are not read
either, because the kernels quantise activations by their own values. `gguf` and `plain` are no
`quant_method` of the Hub: `gguf_config.py` and `consolidated.py` write them, `plain` for numbers in another
order of rows.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from potluck.errors import InvalidConfigError
from potluck.model.fields import Fields, escaped, invalid
from potluck.model.formats import BLOCK_INPUTS
from potluck.model.limits import MAX_LAYERS

Shape = tuple[int, ...]
Method = Literal["gptq", "awq", "fp8", "integers", "packed", "gguf", "plain"]
"""How a matrix is stored; `integers` (a byte each) and `packed` (in 32-bit words) are compressed-tensors'."""

MatrixRole = Literal["qkv", "output", "gate_up", "down"]
"""Matrices of a layer, or of its experts, that share a format: some are multiplied as one."""

WEIGHT = ".weight"
TRANSPOSED = ".weight_t"  # of a matrix that is stored as (in, out), in plain numbers
GGUF = "GGUF_"  # before the name of a type of llama.cpp: the dtype of a tensor of such blocks
MAX_GROUP = 1 << 20  # inputs; models have 128 or 32
_MAX_BLOCK = 1 << 16  # rows or inputs; models have 128
_MATRIX = re.compile(r"model\.layers\.(\d+)\..*\.(\w+)\.weight$")
_ROLES: Mapping[str, MatrixRole] = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "qkv_proj": "qkv", "o_proj": "output",
    "q_a_proj": "qkv", "q_b_proj": "qkv", "kv_a_proj_with_mqa": "qkv",
    "gate_proj": "gate_up", "up_proj": "gate_up", "gate_up_proj": "gate_up", "down_proj": "down",
    "w1": "gate_up", "w3": "gate_up", "w2": "down",
}  # fmt: skip
ROLES: tuple[MatrixRole, ...] = ("qkv", "output", "gate_up", "down")
_FLOATS = ("F16", "BF16", "F32")
_SUFFIXES = frozenset(
    {
        ".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_scale",
        ".weight_scale_inv", ".weight_zero_point", ".weight_g_idx", ".blocks", TRANSPOSED,
    }
)  # fmt: skip
_READABLE = (
    "GPTQ (formats gptq and gptq_v2, 2, 4 or 8 bits), AWQ (version gemm), FP8 (e4m3), compressed-tensors"
    " (float-quantized, int-quantized and pack-quantized) and GGUF"
)

# Inputs and bytes of a block (ggml-common.h of llama.cpp), for the types in use that `gguf.quants` can read.
GGUF_BLOCKS: Mapping[str, tuple[int, int]] = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "IQ3_S": (256, 110), "IQ3_XXS": (256, 98),
    "IQ2_S": (256, 82), "IQ2_XS": (256, 74), "IQ2_XXS": (256, 66),
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
    is_affine: bool = True  # value = scale x integer - offset
    higher_precision: frozenset[tuple[int, MatrixRole]] = frozenset()
    """Layers and roles of the matrices that are stored in more than 4 bits, where most have 4 with offsets."""
    has_coarse_head: bool = False  # the head is stored in 4 bits with offsets too

    @property
    def fits_offsets(self) -> bool:
        """True if the source is asymmetric int4 with groups divisible by 32."""
        in_groups = (self.group_size or 0) % BLOCK_INPUTS == 0 and not self.is_reordered
        return self.bits == 4 and not self.is_symmetric and self.is_affine and in_groups

    def higher_precision_roles(self, layer: int) -> frozenset[MatrixRole]:
        """The roles in this layer whose matrices are stored in higher precision than most."""
        return frozenset(role for role in ROLES if (layer, role) in self.higher_precision)

    def has_higher_precision(self, name: str) -> bool:
        """Whether the matrix of this name is stored in higher precision than most."""
        if not self.higher_precision or (found := _MATRIX.search(name)) is None:
            return False
        role = _ROLES.get(found[2])
        return role is not None and (int(found[1]), role) in self.higher_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """One of the tensors that a matrix is stored in."""

    suffixes: tuple[str, ...]  # its name has one of these in place of `.weight`
    dtypes: tuple[str, ...]  # it has one of these
    shapes: tuple[Shape, ...]  # and one of these
    optional: bool = False


def read_quantization(fields: Fields) -> Quantization | None:
    """Read `quantization_config` of a config; None: it has none, and its weights are plain numbers.

    Raises:
        InvalidConfigError: the method cannot be read, or a field makes no sense.
    """
    if "quantization_config" not in fields:
        return None
    given = fields.fields("quantization_config")
    method = given.text("quant_method", "")
    if (read := _METHODS.get(method)) is None:
        raise _unreadable(given.path("quant_method"), method or "a method without a name")
    interleaved = given.flag("interleaved_heads", False)
    return replace(read(given), interleaved_heads=interleaved)


def stored_parts(quantization: Quantization, shape: Shape) -> tuple[StoredPart, ...]:
    """The tensors in which a quantised matrix (out, in) is stored.

    Empty for GGUF, which stores it as one tensor whose dtype says everything, and for other shapes.
    """
    if len(shape) != 2:
        return ()
    rows, inputs = shape
    groups = -(-inputs // (quantization.group_size or inputs))
    per_word = 32 // quantization.bits
    row_words, input_words = -(-rows // per_word), -(-inputs // per_word)
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
        case "integers":
            return (_part(WEIGHT, ("I8",), shape), _byte_scale(None, shape))
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
        case "gguf" | "plain":
            return ()


def weight_name(stored: str) -> str:
    """The name of the model's tensor that a stored tensor is, or is a part of."""
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
    return StoredPart(suffixes=(suffix,), dtypes=dtypes, shapes=shapes, optional=optional)


def _byte_scale(block: tuple[int, int] | None, shape: Shape) -> StoredPart:
    """The scales of 8-bit weights: one for each block, one for each row, or one for the matrix."""
    rows, inputs = shape
    shapes = ((), (1,), (1, 1), (rows, 1), (rows,))
    if block is not None:
        shapes = ((-(-rows // block[0]), -(-inputs // block[1])),)
    suffixes = (".weight_scale", ".weight_scale_inv")  # which multiplies too, in spite of its name
    return StoredPart(suffixes=suffixes, dtypes=_FLOATS, shapes=shapes)


def _read_gptq(given: Fields) -> Quantization:
    for name in ("checkpoint_format", "format"):
        form = given.text(name, "gptq").lower()
        if form not in ("gptq", "gptq_v2"):
            raise _unreadable(given.path(name), f"GPTQ in the format {form}")
        if form == "gptq_v2":
            break
    if given.flag("is_marlin_format", False):
        raise _unreadable(given.path("is_marlin_format"), "GPTQ in the format marlin")
    return Quantization(
        method="gptq",
        bits=_bits(given, "bits", (2, 4, 8), "GPTQ"),
        is_symmetric=given.flag("sym", True),
        is_reordered=given.flag("desc_act", False),
        group_size=_group_size(given, "group_size"),
        zero_offset=0 if form == "gptq_v2" else 1,
    )


def _read_awq(given: Fields) -> Quantization:
    version = given.text("version", given.text("format", "gemm")).lower()
    if version != "gemm":
        raise _unreadable(given.path("version"), f"AWQ of the version {version}")
    return Quantization(
        method="awq",
        bits=_bits(given, "bits" if "bits" in given else "w_bit", (4,), "AWQ"),
        is_symmetric=not given.flag("zero_point", True),
        group_size=_group_size(given, "group_size" if "group_size" in given else "q_group_size"),
    )


def _read_fp8(given: Fields) -> Quantization:
    if (form := given.text("fmt", "e4m3").lower()) not in ("e4m3", "float8_e4m3fn"):
        raise _unreadable(given.path("fmt"), f"FP8 in the format {form}")
    return Quantization(method="fp8", block=_block(given, "weight_block_size"))


def _read_modelopt(given: Fields) -> Quantization:
    if (algorithm := given.text("quant_algo", "")) != "FP8":
        raise _unreadable(given.path("quant_algo"), f"modelopt's {algorithm}")
    return Quantization(method="fp8")


def _read_auto_round(given: Fields) -> Quantization:
    """Intel's AutoRound, which stores its integers as GPTQ or AWQ does."""
    match given.text("packing_format", ""):
        case "auto_round:auto_gptq":
            return _read_gptq(given)
        case "auto_round:auto_awq":
            zero_point = not given.flag("sym", True)
            return _read_awq(given.having({"zero_point": zero_point}))
        case other:
            raise _unreadable(given.path("packing_format"), f"AutoRound in the form {other}")


def _read_compressed(given: Fields) -> Quantization:
    """https://github.com/neuralmagic/compressed-tensors, `quantization/quant_args.py`."""
    form = given.text("format", "")
    if form not in ("float-quantized", "naive-quantized", "int-quantized", "pack-quantized"):
        raise _unreadable(given.path("format"), f"compressed-tensors in the format {form}")
    _check_transforms(given)
    groups = given.fields("config_groups")
    found = [_read_group(groups.fields(name), form) for name in groups.names]
    if not found or any(other != found[0] for other in found):
        raise _unreadable(
            given.path("config_groups"), "compressed-tensors of several kinds in one model"
        )
    return found[0]


def _check_transforms(given: Fields) -> None:
    """Refuse rotations of activations, which QuIP and SpinQuant undo in the weights.

    A transform of the weights alone is part of the stored weights already
    (`transform/transform_args.py` of compressed-tensors).
    """
    if not given.value("transform_config"):
        return
    schemes = given.fields("transform_config").fields("config_groups")
    for name in schemes.names:
        for step in schemes.fields(name).each("apply"):
            if step.text("location") not in ("weight_input", "weight_output"):
                raise _unreadable(
                    step.path("location"),
                    "compressed-tensors with activations rotated on the way (QuIP or SpinQuant)",
                )


def _read_group(group: Fields, form: str) -> Quantization:
    weights = group.fields("weights")
    kind, strategy = weights.text("type", "int"), weights.text("strategy", "tensor")
    symmetric = weights.flag("symmetric", True)
    if form == "pack-quantized":
        if kind != "int" or strategy not in ("group", "channel"):
            raise _unreadable(
                weights.path("type"), f"packed {kind} with a scale for each {strategy}"
            )
        return Quantization(
            method="packed",
            bits=_bits(weights, "num_bits", (4, 8), "pack-quantized"),
            is_symmetric=symmetric,
            is_reordered="actorder" in weights and weights.value("actorder") != "weight",
            group_size=_group_size(weights, "group_size") if strategy == "group" else None,
        )
    if weights.integer("num_bits", 1, 32) != 8 or strategy not in ("tensor", "channel", "block"):
        raise _unreadable(weights.path("strategy"), f"{form} with a scale for each {strategy}")
    block = _block(weights, "block_structure") if strategy == "block" else None
    if kind == "float":
        return Quantization(method="fp8", block=block)
    if not symmetric or block is not None:
        raise _unreadable(
            weights.path("symmetric"), "integers of 8 bits with zero points or blocks"
        )
    return Quantization(method="integers")


def _read_gguf(given: Fields) -> Quantization:
    return Quantization(
        method="gguf",
        bits=given.integer("bits", 1, 32),
        is_symmetric=given.flag("sym", True),
        norms_are_whole=given.flag("norms_are_whole", False),
        is_affine="finer" in given,
        higher_precision=(
            _higher_precision(given.fields("finer")) if "finer" in given else frozenset()
        ),
        has_coarse_head=given.flag("coarse_head", False),
    )


def _higher_precision(given: Fields) -> frozenset[tuple[int, MatrixRole]]:
    return frozenset(
        (layer, role)
        for role in ROLES
        for layer in given.integers(role, 0, MAX_LAYERS - 1, MAX_LAYERS)
    )


_METHODS: Mapping[str, Callable[[Fields], Quantization]] = {
    "gptq": _read_gptq,
    "awq": _read_awq,
    "fp8": _read_fp8,
    "fbgemm_fp8": _read_fp8,
    "modelopt": _read_modelopt,
    "auto-round": _read_auto_round,
    "compressed-tensors": _read_compressed,
    "gguf": _read_gguf,
    "plain": lambda _: Quantization(method="plain", bits=16),
}


def _bits(given: Fields, name: str, known: tuple[int, ...], method: str) -> int:
    bits = given.integer(name, 1, 32)
    if bits not in known:
        raise _unreadable(given.path(name), f"{method} with {bits} bits")
    return bits


def _group_size(given: Fields, name: str) -> int | None:
    """Inputs of a group; None for -1, which means the whole row."""
    size = given.integer(name, -1, MAX_GROUP, 128)
    if size == 0:
        raise invalid(given.path(name), size, "must be -1 or at least 1")
    return None if size == -1 else size


def _block(given: Fields, name: str) -> tuple[int, int] | None:
    sizes = given.integers(name, 1, _MAX_BLOCK, 2)
    if not sizes:
        return None
    if len(sizes) != 2:
        raise invalid(given.path(name), len(sizes), "must be the rows and the inputs of a block")
    return sizes[0], sizes[1]


def _unreadable(field: str, what: str) -> InvalidConfigError:
    return InvalidConfigError(
        f"The model is stored quantised as {escaped(what)} ({field} in config.json), which Potluck cannot read."
        f" It reads {_READABLE}. Take the model in one of those, or the original.",
        field=field,
    )
