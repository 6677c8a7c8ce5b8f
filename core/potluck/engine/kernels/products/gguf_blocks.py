"""Read blocks of GGUF: from rows of bytes to integers with scales, or to numbers.

The layout of each type is from `ggml-common.h` and `ggml-quants.c` of llama.cpp; each function repeats it for
its type. The types in use most are read by torch here, in a third to a half of the time that the `gguf`
package takes, with bit-equal numbers. The package reads the others.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from potluck.engine.kernels.products.scaled import ScaledIntegers, from_e8m0
from potluck.engine.kernels.products.tensors import signed_integers, unpack_nibbles
from potluck.model.formats import MXFP4

_IQ4_INTEGERS = torch.tensor(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8
)


def block_integers(kind: str, rows: Tensor) -> ScaledIntegers | None:
    """(n, bytes) → integers with scales alone; None: the type is none of these."""
    read = _INTEGERS.get(kind)
    return None if read is None else read(rows)


def block_offsets(kind: str, rows: Tensor) -> ScaledIntegers | None:
    """(n, bytes) → integers with scales and offsets; None: the type has no such."""
    read = _OFFSETS.get(kind)
    return None if read is None else read(rows)


def block_numbers(kind: str, rows: Tensor) -> Tensor:
    """(n, bytes) → (n, width), f32."""
    if (found := block_offsets(kind, rows)) is not None:
        return found.values()
    if (read := _NUMBERS.get(kind)) is not None:
        return read(rows)
    # Imported late: it takes 4 MB, and few models need it.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    with np.errstate(all="ignore"):  # a scale of NaN is found when it is packed
        return torch.from_numpy(dequantize(rows.numpy(), GGMLQuantizationType[kind]))


def _q4_0(rows: Tensor) -> ScaledIntegers:
    """An f16 scale, then 16 bytes: inputs 0 to 15 in the low nibbles, 16 to 31 in the high ones."""
    groups = rows.unflatten(1, (-1, 18))
    integers = unpack_nibbles(groups[..., 2:]).view(torch.int8) - 8
    return ScaledIntegers(integers.flatten(1), _f16(groups, 0))


def _q4_1(rows: Tensor) -> ScaledIntegers:
    """As Q4_0, with an f16 after the scale that is added to the product."""
    groups = rows.unflatten(1, (-1, 20))
    integers = unpack_nibbles(groups[..., 4:]).view(torch.int8)
    return ScaledIntegers(integers.flatten(1), _f16(groups, 0), -_f16(groups, 2))


def _q5_0(rows: Tensor) -> ScaledIntegers:
    """As Q4_0, with 4 bytes after the scale: the fifth bit of each input, from the low end."""
    groups = rows.unflatten(1, (-1, 22))
    fifth = (groups[..., 2:6, None] >> torch.arange(8, dtype=torch.uint8)).flatten(-2) & 1
    integers = (unpack_nibbles(groups[..., 6:]) | fifth << 4).view(torch.int8) - 16
    return ScaledIntegers(integers.flatten(1), _f16(groups, 0))


def _q8_0(rows: Tensor) -> ScaledIntegers:
    """An f16 scale, then 32 signed bytes."""
    groups = rows.unflatten(1, (-1, 34))
    integers = groups[..., 2:].contiguous().view(torch.int8)
    return ScaledIntegers(integers.flatten(1), _f16(groups, 0))


def _iq4_nl(rows: Tensor) -> ScaledIntegers:
    """As Q4_0, but the four bits are an index into a table of integers."""
    groups = rows.unflatten(1, (-1, 18))
    integers = _IQ4_INTEGERS[unpack_nibbles(groups[..., 2:]).long()]
    return ScaledIntegers(integers.flatten(1), _f16(groups, 0))


def _mxfp4(rows: Tensor) -> ScaledIntegers:
    """A byte with the exponent of the scale, then codes as Q4_0 has its integers."""
    groups = rows.unflatten(1, (-1, 17))
    codes = unpack_nibbles(groups[..., 1:]).flatten(1)
    return ScaledIntegers(signed_integers(MXFP4, codes), from_e8m0(groups[..., 0]) / 2)


def _q4_k(rows: Tensor) -> ScaledIntegers:
    """Two f16 scales, 12 bytes of 8 scales and 8 minima, then 4 times 32 bytes: low nibbles, high nibbles."""
    blocks = rows.unflatten(1, (-1, 144))
    scale, minimum = _scales_and_minima(blocks)
    integers = unpack_nibbles(blocks[..., 16:].unflatten(-1, (4, 32))).view(torch.int8)
    steps = torch.stack((_f16(blocks, 0), _f16(blocks, 2)), -1)
    return ScaledIntegers(integers.flatten(1), scale.flatten(1), minimum.flatten(1), steps)


def _q5_k(rows: Tensor) -> Tensor:
    """As Q4_K, with 32 bytes before the nibbles: bit i of a byte is the fifth bit of the i-th 32 inputs."""
    blocks = rows.unflatten(1, (-1, 176))
    fifth = (blocks[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1
    low = unpack_nibbles(blocks[..., 48:].unflatten(-1, (4, 32))).view(fifth.shape)
    integers, factors = (low | fifth << 4).flatten(1), _scales_and_minima(blocks)
    return ScaledIntegers(integers, *(one.flatten(1) for one in factors)).values()


def _q6_k(rows: Tensor) -> Tensor:
    """Twice 64 bytes of four low bits, twice 32 bytes of two high bits, 16 scales of i8, then an f16 scale."""
    blocks = rows.unflatten(1, (-1, 210))
    shape = (*blocks.shape[:2], 8, 32)
    low = unpack_nibbles(blocks[..., :128].unflatten(-1, (2, 64))).reshape(shape)
    places = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> places) & 3
    integers = (low | high.reshape(shape) << 4).view(torch.int8) - 32
    scales = _f16(blocks, 208)[..., None] * blocks[..., 192:208].view(torch.int8)
    return integers.view(*shape[:2], 16, 16).float().mul_(scales[..., None]).flatten(1)


_INTEGERS: Mapping[str, Callable[[Tensor], ScaledIntegers]] = {
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
}
_OFFSETS: Mapping[str, Callable[[Tensor], ScaledIntegers]] = {"Q4_1": _q4_1, "Q4_K": _q4_k}
_NUMBERS: Mapping[str, Callable[[Tensor], Tensor]] = {"Q5_K": _q5_k, "Q6_K": _q6_k}


def _f16(blocks: Tensor, at: int) -> Tensor:
    """The f16 that begins at this byte of each block, as f32."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).float().squeeze(-1)


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """8 scales and 8 minima of six bits in every block of 256, times the scales of the block, f32.

    Bytes 4 to 7 have the first four scales in their lower six bits, bytes 8 to 11 the first four minima. The
    other four have their lower four bits in bytes 12 to 15, scales in the low nibbles and minima in the
    high ones, and their upper two bits at the top of bytes 4 to 11.
    """
    first, second, both = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, both & 15 | first >> 2 & 48), -1)
    minima = torch.cat((second & 63, both >> 4 | second >> 2 & 48), -1)
    scale = _f16(blocks, 0)[..., None] * scales.float()  # (n, blocks, 8)
    minimum = _f16(blocks, 2)[..., None] * minima.float()
    return scale, minimum
