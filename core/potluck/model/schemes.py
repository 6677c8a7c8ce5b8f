"""Schemes: in how many bits a model's weights are held, and what that takes.

`int8` and `int4` hold every matrix in packed blocks of 16 rows x 32 inputs, with a scale of 16 bits for
each row of a block (`engine/kernels/layout.py` has the bytes). What is no matrix (norms, biases) and
the router of a mixture of experts stay f32: they are small, and the router's choice is a comparison of
close numbers. An embedding that is not the head too is only looked up, which costs memory and no time;
it has 8 bits in every packed scheme.

`int4-offset` has an offset beside each scale, with which the integers of GGUF's Q4_1 and Q4_K, of AWQ, and
of GPTQ and compressed-tensors with zero points are held as they are; all that is rounded are scales and
offsets, to f16. What such a model's files store more finely has 8 bits: its head mostly, and the matrices
that `Quantization.finer` names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # every command knows the names of the schemes, and few need a config
    from potluck.model.config import ModelConfig, Shape

Scheme = Literal["f32", "bf16", "f16", "int8", "int4-offset", "int4-head8", "int4"]
"""How weights are held; `bf16` is f16 where a device has no bf16."""
AskedScheme = Scheme | Literal["auto"]
"""`auto`: the best quality that fits."""

Cache = Literal["full", "int8"]
"""How keys and values are kept: in the numbers of the scheme, at most 16 bits of them beside packed
weights, or in 8 bits with a scale for each head and token (where a CPU computes)."""

SMALL_MODEL_BYTES = 100_000_000

BLOCK_ROWS = 16
GROUP = 32  # inputs that share a scale
SCALE_BYTES = 2  # and those of an offset

OFFSET_BITS = 5
INTEGER_BITS: Mapping[int, int] = {4: 4, OFFSET_BITS: 4, 8: 8}
"""The forms of packed matrices, named by the whole bits that a weight takes, and the bits of its integer."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The bits of a packed scheme's matrices, named as `INTEGER_BITS` names them."""

    layers: int
    head: int


PACKINGS: Mapping[Scheme, Packing] = {
    "int8": Packing(layers=8, head=8),
    "int4-offset": Packing(layers=OFFSET_BITS, head=8),
    "int4-head8": Packing(layers=4, head=8),
    "int4": Packing(layers=4, head=4),
}
_OF_PLAIN_NUMBERS: tuple[Scheme, ...] = ("int8", "int4-head8", "int4")  # offsets save them little
FLOAT_BYTES: Mapping[Scheme, int] = {"f32": 4, "bf16": 2, "f16": 2}  # of one weight
PACKED_DTYPES: Mapping[str, int] = {"PACKED8": 8, "PACKED4_OFFSET": OFFSET_BITS, "PACKED4": 4}
"""What a manifest calls the dtype of packed bytes, and their bits."""
PACKING_VERSION = 1
"""Of what packing makes of the same numbers: other bytes, and what was packed before is not remembered."""

_EMBEDDING_BITS = 8
_FINER_BITS = 8
_VECTOR_BYTES = 4  # of a number of what is not packed


def packed_bytes(rows: int, width: int, bits: int) -> int:
    """Bytes of a packed matrix; blocks and groups that are cut off are stored whole."""
    blocks, groups = -(-rows // BLOCK_ROWS), -(-width // GROUP)
    factors = 2 if bits == OFFSET_BITS else 1
    return blocks * groups * BLOCK_ROWS * (GROUP * INTEGER_BITS[bits] // 8 + factors * SCALE_BYTES)


def tensor_bits(config: "ModelConfig", name: str, shape: "Shape", scheme: Scheme) -> int | None:
    """The bits in which a tensor is packed; None: it is not."""
    packing = PACKINGS.get(scheme)
    if packing is None or len(shape) < 2 or config.is_router(name):
        return None
    stored = config.quantization if scheme == "int4-offset" else None
    if name == config.head_name:
        is_coarse = stored is not None and stored.has_coarse_head
        return packing.layers if is_coarse else packing.head
    if name == config.embedding_name:
        return _EMBEDDING_BITS
    return _FINER_BITS if stored is not None and stored.is_finer(name) else packing.layers


def tensor_bytes(config: "ModelConfig", name: str, shape: "Shape", scheme: Scheme) -> int:
    """What a tensor takes in memory."""
    bits = tensor_bits(config, name, shape, scheme)
    if bits is not None:
        return packed_bytes(shape[0], prod(shape[1:]), bits)
    is_norm = len(shape) < 2 and not name.endswith(".bias")
    is_wide = scheme in PACKINGS or is_norm or config.is_router(name)
    return prod(shape) * (_VECTOR_BYTES if is_wide else FLOAT_BYTES[scheme])


def weight_bytes(config: "ModelConfig", tensors: "Mapping[str, Shape]", scheme: Scheme) -> int:
    """What these tensors take in memory."""
    return sum(tensor_bytes(config, name, shape, scheme) for name, shape in tensors.items())


def activation_item(scheme: Scheme) -> int:
    """Bytes of one number of a hidden state, the most that any device takes."""
    return 2 if scheme in ("bf16", "f16") else 4


def schemes_to_try(config: "ModelConfig", dtypes: Iterable[str], nbytes: int) -> tuple[Scheme, ...]:
    """What `auto` chooses among, the best quality first; the first one that fits is taken.

    Args:
        config: the model's.
        dtypes: of its stored tensors, as safetensors names them; more bits than these gain nothing.
        nbytes: of all of them; in a small model rounding costs more than it gains.
    """
    stored = set(dtypes)
    # bf16 would cut three bits off f16, and rounds hidden states more; of f16 a CPU with products of bf16
    # reads prompts five times slower, and decodes as fast.
    is_f16 = "F16" in stored and "BF16" not in stored and not config.exceeds_f16
    half: Scheme = "f16" if is_f16 else "bf16"
    is_wide = nbytes < SMALL_MODEL_BYTES or stored == {"F32"}
    return ("f32", half, *_OF_PLAIN_NUMBERS) if is_wide else (half, *_OF_PLAIN_NUMBERS)
