"""Read `quantization_config` of a `config.json`: how a model's matrices are stored."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from potluck.errors import InvalidConfigError
from potluck.model.fields import Fields, escaped, invalid
from potluck.model.formats import BLOCK_INPUTS
from potluck.model.limits import MAX_LAYERS
from potluck.model.quantized import (
    MAX_GROUP,
    ROLES,
    WEIGHT,
    Converted,
    MatrixRole,
    Quantization,
    role_of,
)

FIELDS = ("quantization_config", "quantization")  # mlx-lm writes the same into both
_MAX_BLOCK = 1 << 16  # rows or inputs; models have 128
_MOST_MIXTURES = 4  # kinds of layers that differ in their finer matrices; each kind is measured
_READABLE = (
    "GPTQ (2, 3, 4 or 8 bits), AWQ (version gemm), FP8 and MXFP8 (e4m3), NVFP4, MXFP4, bitsandbytes, MLX,"
    " compressed-tensors and GGUF"
)


def read_quantization(fields: Fields) -> Quantization | None:
    """Read `quantization_config` of a config; None: it has none, and its weights are plain numbers.

    Raises:
        InvalidConfigError: the method cannot be read, or a field makes no sense.
    """
    for name in FIELDS:
        if name in fields:
            given = fields.fields(name)
            break
    else:
        return None
    if "quant_method" not in given and "bits" in given and "group_size" in given:
        return _read_mlx(given)
    method = given.text("quant_method", "").lower()
    if (read := _METHODS.get(method)) is None:
        named = method or "something that config.json does not name"
        raise _unreadable(given.path("quant_method"), named)
    interleaved = given.flag("interleaved_heads", False)
    found = replace(read(given), interleaved_heads=interleaved)
    if "fp4" in (fields.value("expert_dtype"), given.value("expert_dtype")):  # DeepSeek V4
        found = replace(found, others=(*found.others, _FP4_EXPERTS), has_mxfp4_experts=True)
    return found


def _read_gptq(given: Fields) -> Quantization:
    for name in ("checkpoint_format", "format"):
        form = given.text(name, "gptq").lower()
        if form not in ("gptq", "gptq_v2"):
            raise _unreadable(given.path(name), f"GPTQ in the format {form}")
        if form == "gptq_v2":
            break
    if given.flag("is_marlin_format", False):
        raise _unreadable(given.path("is_marlin_format"), "GPTQ in the format marlin")
    usual = Quantization(
        method="gptq",
        bits=_bits(given, "bits", (2, 3, 4, 8), "GPTQ"),
        is_symmetric=given.flag("sym", True),
        is_reordered=given.flag("desc_act", False),
        group_size=_group_size(given, "group_size"),
        zero_offset=0 if form == "gptq_v2" else 1,
    )
    found: list[Quantization] = []
    for name in ("dynamic", "extra_config"):  # GPTQModel's and AutoRound's exceptions
        exceptions = given.fields(name) if name in given else Fields({})
        for matrix in exceptions.names:
            one = exceptions.fields(matrix)
            bits = usual.bits
            if "bits" in one and one.integer("bits", 1, 32) < 16:
                bits = _bits(one, "bits", (2, 3, 4, 8), "GPTQ")
            size = _group_size(one, "group_size") if "group_size" in one else usual.group_size
            found.append(replace(usual, bits=bits, group_size=size))
    return _with_others(usual, found)


def _with_others(usual: Quantization, found: Iterable[Quantization]) -> Quantization:
    """The usual way of a model's matrices, with other ones."""
    others = tuple(dict.fromkeys(one for one in found if one != usual))
    return replace(usual, others=others)


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


def _four_bit_floats(group_size: int) -> Quantization:
    return Quantization(
        method="fp4", bits=4, group_size=group_size, is_symmetric=False, is_affine=False
    )


# What NVIDIA's Model Optimizer calls them.
_ALGORITHMS: Mapping[str, Quantization] = {
    "FP8": Quantization(method="fp8"),
    "FP8_PB_WO": Quantization(method="fp8", block=(128, 128)),
    "MXFP8": Quantization(method="fp8", block=(1, 32)),
    "NVFP4": _four_bit_floats(16),
    "W4A16_NVFP4": _four_bit_floats(16),
    "NVFP4_AWQ": _four_bit_floats(16),
}


def _read_modelopt(given: Fields) -> Quantization:
    algorithm = given.text("quant_algo", "")
    names = [algorithm]
    if algorithm == "MIXED_PRECISION":
        layers = given.fields("quantized_layers")
        names = [layers.fields(name).text("quant_algo", "") for name in layers.names]
    found: list[Quantization] = []
    for name in names:
        if (one := _ALGORITHMS.get(name)) is None:
            raise _unreadable(given.path("quant_algo"), f"modelopt's {name or 'MIXED_PRECISION'}")
        found.append(one)
    return _fewest_bits(given.path("quantized_layers"), found)


def _fewest_bits(field: str, found: Sequence[Quantization]) -> Quantization:
    """Several ways of one model; the one with the fewest bits is the usual one."""
    if not found:
        raise _unreadable(field, "nothing that it names")
    return _with_others(min(found, key=lambda one: one.bits), found)


def _read_mxfp8(given: Fields) -> Quantization:
    return Quantization(method="fp8", block=_block(given, "weight_block_size") or (1, 32))


def _read_bitsandbytes(given: Fields) -> Quantization:
    if given.flag("load_in_8bit", False) or given.flag("_load_in_8bit", False):
        return Quantization(method="integers")
    if given.flag("load_in_4bit", False) or given.flag("_load_in_4bit", False):
        return Quantization(
            method="bitsandbytes", bits=4, group_size=64, is_symmetric=False, is_affine=False
        )
    raise _unreadable(given.path("load_in_4bit"), "bitsandbytes with neither 4 nor 8 bits")


def _read_mlx(given: Fields) -> Quantization:
    """mlx-lm's `quantization`: bits and groups of most matrices, and of others by their names.

    Their tensors show how they are stored. The names say in which layers they have more than 4 bits.
    """
    bits, group = _mlx_bits(given), given.integer("group_size", 16, 128)
    finer: dict[int, set[MatrixRole]] = {}
    coarse_head = bits <= 4
    for name in given.names:
        if not isinstance(given.value(name), Mapping):
            continue
        is_coarse = _mlx_bits(given.fields(name)) <= 4
        if name.endswith(("lm_head", "embed_tokens")):
            coarse_head = coarse_head and is_coarse
        elif not is_coarse and (place := role_of(name + WEIGHT)) is not None:
            finer.setdefault(place[0], set()).add(place[1])
    if len({frozenset(roles) for roles in finer.values()}) >= _MOST_MIXTURES:
        anywhere = set[MatrixRole]().union(*finer.values())
        finer = dict.fromkeys(range(MAX_LAYERS), anywhere)
    return Quantization(
        method="mlx",
        bits=bits,
        group_size=group,
        is_symmetric=False,
        is_affine=given.text("mode", "affine") == "affine",
        higher_precision=frozenset((layer, role) for layer in finer for role in finer[layer]),
        has_coarse_head=coarse_head,
    )


def _mlx_bits(given: Fields) -> int:
    if (mode := given.text("mode", "affine")) not in ("affine", "mxfp4", "mxfp8", "nvfp4"):
        raise _unreadable(given.path("mode"), f"MLX in the mode {mode}")
    return _bits(given, "bits", (2, 3, 4, 5, 6, 8), "MLX")


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
    _check_transforms(given)
    groups = given.fields("config_groups")
    # In a model of several formats, each group has its own.
    found = [_read_group(one, one.text("format", form)) for one in map(groups.fields, groups.names)]
    return _fewest_bits(given.path("config_groups"), found)


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
    size = _group_size(weights, "group_size") if strategy in ("group", "tensor_group") else None
    if (known := _FORMATS.get(form)) is not None:
        return known
    if form not in ("float-quantized", "naive-quantized", "int-quantized", "pack-quantized"):
        raise _unreadable(group.path("format"), f"compressed-tensors in the format {form}")
    if form == "pack-quantized":
        if kind != "int" or strategy not in ("group", "channel"):
            raise _unreadable(
                weights.path("type"), f"packed {kind} with a scale for each {strategy}"
            )
        return Quantization(
            method="packed",
            bits=_bits(weights, "num_bits", (2, 4, 8), "pack-quantized"),
            is_symmetric=symmetric,
            is_reordered="actorder" in weights and weights.value("actorder") != "weight",
            group_size=size,
        )
    if strategy not in ("tensor", "channel", "block", "group"):
        raise _unreadable(weights.path("strategy"), f"{form} with a scale for each {strategy}")
    block = _block(weights, "block_structure") if strategy == "block" else None
    if kind == "float":
        _bits(weights, "num_bits", (8,), form)
        return Quantization(method="fp8", block=block or ((1, size) if size else None))
    if strategy == "block":
        raise _unreadable(weights.path("strategy"), "integers with a scale for each block")
    return Quantization(
        method="integers",
        bits=_bits(weights, "num_bits", tuple(range(2, 9)), form),
        is_symmetric=symmetric,
        group_size=size,
    )


# Formats of compressed-tensors that say everything.
_FORMATS: Mapping[str, Quantization] = {
    "nvfp4-pack-quantized": _four_bit_floats(16),
    "mxfp4-pack-quantized": _four_bit_floats(32),
    "mxfp8-quantized": Quantization(method="fp8", block=(1, 32)),
}


# OpenAI's: of gpt-oss
_FP4_EXPERTS = Quantization(method="fp4", bits=4, group_size=BLOCK_INPUTS, is_affine=False)
_MXFP4_EXPERTS = Quantization(
    method="mxfp4", bits=4, group_size=BLOCK_INPUTS, is_affine=False, has_mxfp4_experts=True
)


def _read_gguf(given: Fields) -> Quantization:
    return Quantization(
        method="gguf",
        bits=given.integer("bits", 1, 32),
        is_symmetric=given.flag("sym", True),
        norms_are_whole=given.flag("norms_are_whole", False),
        delta_net=_converted(given),
        is_affine="finer" in given or given.flag("sym", True),
        higher_precision=(
            _higher_precision(given.fields("finer")) if "finer" in given else frozenset()
        ),
        has_mxfp4_experts=given.flag("mxfp4_experts", False),
        has_coarse_head=given.flag("coarse_head", False),
        has_super_blocks=given.flag("super_blocks", False),
    )


def _converted(given: Fields) -> Converted | None:
    how = given.text("delta_net", "grouped")
    if how not in ("grouped", "tiled"):
        raise invalid(given.path("delta_net"), how, "must be grouped or tiled")
    return how if "delta_net" in given else None


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
    "mxfp8": _read_mxfp8,
    "modelopt": _read_modelopt,
    "modelopt_fp4": _read_modelopt,
    "modelopt_mixed": _read_modelopt,
    "bitsandbytes": _read_bitsandbytes,
    "auto-round": _read_auto_round,
    "compressed-tensors": _read_compressed,
    "mxfp4": lambda _: _MXFP4_EXPERTS,
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
