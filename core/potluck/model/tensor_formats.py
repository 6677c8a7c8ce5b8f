"""In which format each tensor of a model is held in a scheme, and how many bytes that takes.

`int8` and `int4` hold every matrix in a packed format (`formats.py`). What is no matrix (norms,
biases, the weights of a convolution over tokens), the router of a MoE, the weights of an indexer's heads, what a
delta net's decays are computed of, and what says how much of a block's result each residual stream gets stay f32: they are small, a router compares numbers that are close to each other, and
a decay's error adds up. An indexer's other matrices have 8 bits in every packed scheme. An embedding that is not also the head is only looked up, which costs memory and no time; it
has 8 bits in every packed scheme.

`int4` and `int4-head8` hold plain numbers as GGUF's Q4_K does, with finer scales, and integers of 4 bits that are
stored without offsets (GGUF's Q4_0, GPTQ and compressed-tensors without zero points) as they are.

`int4-offset` holds the integers of GGUF's Q4_1 and Q4_K, of AWQ, and of GPTQ and compressed-tensors with
zero points as they are. Those of Q4_K keep their scales and offsets; of the others these are rounded, to f16. What the
files of such a model store in higher precision has 8 bits: mostly its head, and the matrices that
`Quantization.higher_precision` names.

Experts that are stored as MXFP4 are held so in every packed scheme: exactly, and in 4.25 bits. The scheme is that of
the other matrices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from potluck.model.config import ModelConfig
from potluck.model.formats import (
    BF16,
    F16,
    F32,
    INT4,
    INT4_OFFSET,
    INT4_SUPER,
    INT8,
    MXFP4,
    PackedFormat,
    WeightFormat,
)
from potluck.model.layers import Shape
from potluck.model.mixing.carried import is_input_table, is_of_inputs
from potluck.model.mixing.channel_delta import is_of_channel_decays
from potluck.model.mixing.delta_net import is_of_rates
from potluck.model.mixing.indexer import is_gate_bias, is_of_indexer
from potluck.model.mixing.ngrams import is_table
from potluck.model.mixing.pooled import is_of_pools, is_pool_bias, weighs_pool_heads
from potluck.model.mixing.streams import is_injection
from potluck.model.naming import EMBEDDING
from potluck.model.quantized import Quantization
from potluck.model.schemes import PACKED_SCHEMES, Scheme
from potluck.model.vision.spec import is_of_tower

SMALL_MODEL_BYTES = 100_000_000

_OF_PLAIN_NUMBERS: tuple[Scheme, ...] = ("int8", "int4-head8", "int4")  # offsets save them little
_HIGHER_PRECISION = INT8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Formats:
    """The format in which a scheme holds each kind of tensor."""

    layers: WeightFormat  # matrices of the layers
    head: WeightFormat
    embedding: WeightFormat
    biases: WeightFormat
    keeps_precision: bool = False
    """Whether the head, and matrices of the layers, follow the precision that the files store them in."""


def _plain(numbers: WeightFormat) -> _Formats:
    return _Formats(layers=numbers, head=numbers, embedding=numbers, biases=numbers)


def _packed(layers: PackedFormat, head: PackedFormat, *, keeps_precision: bool = False) -> _Formats:
    return _Formats(
        layers=layers, head=head, embedding=INT8, biases=F32, keeps_precision=keeps_precision
    )


_FORMATS: Mapping[Scheme, _Formats] = {
    "f32": _plain(F32),
    "bf16": _plain(BF16),
    "f16": _plain(F16),
    "int8": _packed(INT8, INT8),
    "int4-offset": _packed(INT4_OFFSET, INT8, keeps_precision=True),
    "int4-head8": _packed(INT4_SUPER, INT8),
    "int4": _packed(INT4_SUPER, INT4_SUPER),
}


def _as_stored(usual: WeightFormat, stored: Quantization | None) -> WeightFormat:
    """The format of a scheme's layers, or that of 4 bits which holds exactly what the files have."""
    if stored is not None and usual is INT4_SUPER and stored.is_even:
        return INT4
    if stored is not None and usual is INT4_OFFSET and stored.has_super_blocks:
        return INT4_SUPER
    return usual


def tensor_format(config: ModelConfig, name: str, shape: Shape, scheme: Scheme) -> WeightFormat:
    """The format that a tensor of the model is held in."""
    formats = _FORMATS[scheme]
    if is_of_tower(
        name
    ):  # it is used once for a picture: 16 bits cost little time, and fewer quality
        return BF16 if isinstance(formats.layers, PackedFormat) else formats.layers
    if len(shape) != 2:
        is_small = config.is_choice_bias(name) or config.is_norm_bias(name)
        is_bias = name.endswith(".bias") and not is_small
        return formats.biases if is_bias else F32
    if _is_on_disk(name):
        return BF16  # as files have it: its rows are read from the disk
    if config.is_router(name) or is_of_rates(name) or is_injection(name):
        return F32
    if (
        is_of_channel_decays(name)
        or weighs_pool_heads(name)
        or is_pool_bias(name)
        or is_gate_bias(name)
    ):
        return F32
    if config.is_expansion(name) and isinstance(formats.layers, PackedFormat):
        return F32  # they are sent as they are: a stage packs them when they are in order
    whole = config.quantization
    is_packed = isinstance(formats.layers, PackedFormat)
    if is_packed and (is_of_indexer(name) or is_of_pools(name) or is_of_inputs(name)):
        return _HIGHER_PRECISION  # it compares scores that are close to each other, or weighs tokens by powers
    if is_packed and whole is not None and whole.has_mxfp4_experts and config.is_of_expert(name):
        return MXFP4
    layers = _as_stored(formats.layers, whole)
    stored = whole if formats.keeps_precision else None
    if name == config.head_name:
        is_coarse = stored is not None and stored.has_coarse_head
        return layers if is_coarse else formats.head
    if name == EMBEDDING:
        return formats.embedding
    is_higher = stored is not None and stored.has_higher_precision(name)
    return _HIGHER_PRECISION if is_higher else layers


def _is_on_disk(name: str) -> bool:
    """Whether a tensor is a part of a table, which stays on the disk."""
    return is_table(name) or is_input_table(name)


def has_super_blocks(config: ModelConfig, scheme: Scheme) -> bool:
    """Whether a scheme holds any matrix of a model's layers, or its head, in super-blocks."""
    formats, stored = _FORMATS[scheme], config.quantization
    return INT4_SUPER in (formats.head, _as_stored(formats.layers, stored))


def tensor_bytes(config: ModelConfig, name: str, shape: Shape, scheme: Scheme) -> int:
    """Bytes of a tensor in memory."""
    if _is_on_disk(name):
        return 0
    if config.is_expansion(name) and scheme in PACKED_SCHEMES:
        return INT8.nbytes(*shape)
    return tensor_format(config, name, shape, scheme).nbytes(shape[0], prod(shape[1:]))


def weight_bytes(config: ModelConfig, tensors: Mapping[str, Shape], scheme: Scheme) -> int:
    """Bytes of these tensors in memory."""
    return sum(tensor_bytes(config, name, shape, scheme) for name, shape in tensors.items())


def in_memory(tensors: Mapping[str, Shape]) -> dict[str, Shape]:
    """Those of these tensors that a stage holds and multiplies with: tables stay on the disk."""
    return {name: shape for name, shape in tensors.items() if not _is_on_disk(name)}


def table_bytes(tensors: Mapping[str, Shape]) -> int:
    """Bytes of those of these tensors that stay on the disk, in 16 bits as they are published."""
    return sum(BF16.nbytes(*shape) for name, shape in tensors.items() if _is_on_disk(name))


def schemes_to_try(config: ModelConfig, dtypes: Iterable[str], nbytes: int) -> tuple[Scheme, ...]:
    """The schemes that `auto` tries, the best quality first; the first one that fits is taken.

    Args:
        config: of the model.
        dtypes: of its stored tensors, as safetensors names them; more bits than these gain nothing.
        nbytes: of all stored tensors; in a small model rounding costs more than it gains.
    """
    stored = set(dtypes)
    # A model of f16 stays f16: bf16 would cut three bits off the weights and round hidden states more. It
    # costs time: a CPU with products of bf16 prefills five times slower with f16, and decodes as fast.
    is_f16 = "F16" in stored and "BF16" not in stored and not config.exceeds_f16
    half: Scheme = "f16" if is_f16 else "bf16"
    is_wide = nbytes < SMALL_MODEL_BYTES or stored == {"F32"}
    return ("f32", half, *_OF_PLAIN_NUMBERS) if is_wide else (half, *_OF_PLAIN_NUMBERS)
