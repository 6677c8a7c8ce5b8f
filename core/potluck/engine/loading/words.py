"""Integers of a few bits, taken from words: GPTQ, AWQ and the packed form of compressed-tensors."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from potluck.engine.kernels.layout import GROUP, groups_of
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.loading.codes import Fill
from potluck.engine.loading.targets import Target
from potluck.errors import BrokenModelError
from potluck.model.quantized import Quantization

_AWQ_FIELDS = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word, those of the columns in order


_Rows = Callable[[int, int], Tensor]
"""First row and end → the integers of these rows as they are stored, (n, width), u8."""


class Words:
    """Zero points and scales of a matrix, one of each for each group of inputs."""

    def __init__(self, zeros: Tensor, scales: Tensor, group: int, group_of: Tensor | None) -> None:
        """Take zero points (out, groups), i16, and scales (out, groups), f32.

        Args:
            zeros: what is subtracted from the integers.
            scales: what the difference is multiplied by.
            group: inputs of each, at most the width.
            group_of: the group of each input; None: they follow one another.
        """
        self.zeros, self.scales, self.group, self.group_of = zeros, scales, group, group_of
        is_whole_row = zeros.shape[1] == 1
        self.is_exact = group_of is None and (group % GROUP == 0 or is_whole_row)
        middle = int(zeros.flatten()[0]) if zeros.numel() else 0
        self.middle = middle if bool((zeros == middle).all()) else None  # None: zero points differ


def fill_words(target: Target, words: Words, first: int, stored: Tensor) -> None:
    """Hand on rows from the `first` one on, of which the integers are `stored` as they are: (n, width), u8."""
    width, rows = target.width, slice(first, first + len(stored))
    scales = words.scales[rows]
    held = target.format
    takes_offsets = held is not None and held.has_offsets and int(stored.max()) <= held.limits[1]
    if takes_offsets and words.is_exact:
        repeated, offsets = (
            repeat(words, of_groups, width) for of_groups in (scales, scales * words.zeros[rows])
        )
        target.fill_integers(first, ScaledIntegers(stored.to(torch.int8), repeated, offsets))
        return
    zeros = spread(words, words.zeros[rows], width) if words.middle is None else words.middle
    integers = stored.to(torch.int16) - zeros
    low, high = integers.aminmax()
    if words.is_exact and low >= -128 and high <= 127:
        target.fill_integers(
            first, ScaledIntegers(integers.to(torch.int8), repeat(words, scales, width))
        )
    else:
        target.fill(first, integers.float() * spread(words, scales, width))


def repeat(words: Words, of_groups: Tensor, width: int) -> Tensor:
    """(n, groups) → (n, groups of 32 inputs)."""
    groups = groups_of(width)
    if of_groups.shape[1] == 1:
        return of_groups.expand(-1, groups)
    return of_groups.repeat_interleave(max(1, words.group // GROUP), 1)[:, :groups]


def spread(words: Words, of_groups: Tensor, width: int) -> Tensor:
    """(n, groups) → (n, width)."""
    if words.group_of is not None:
        return of_groups.index_select(1, words.group_of)
    return of_groups.repeat_interleave(words.group, 1)[:, :width]


def group_size(quantization: Quantization, width: int) -> int:
    """Inputs that share a scale; a config may say more than a row has."""
    return min(quantization.group_size or width, width)


def gptq(
    quantization: Quantization, parts: Mapping[str, Tensor], width: int
) -> tuple[Words, _Rows]:
    """How to read a matrix of GPTQ; its parts are by the last part of their names."""
    bits, qweight = quantization.bits, parts["qweight"]  # (words of in, out)
    scales = parts["scales"].float().t().contiguous()
    zeros = fields(parts["qzeros"], bits)[:, : len(scales)].t().to(torch.int16)  # (out, groups)
    # GPTQ v1 stores zero - 1, modulo 2^bits.
    zeros = (zeros + quantization.zero_offset) & ((1 << bits) - 1)
    group = group_size(quantization, width)

    def rows(first: int, last: int) -> Tensor:
        return fields(qweight[:, first:last].t(), bits)[:, :width]

    order = _group_of(parts.get("g_idx"), group, width, scales)
    return Words(zeros, scales, group, order), rows


def awq(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> tuple[Words, _Rows]:
    """How to read a matrix of AWQ; its parts are by the last part of their names."""
    qweight = parts["qweight"]  # (in, words of out)
    scales = parts["scales"].float().t().contiguous()

    def columns(words: Tensor) -> Tensor:
        """(in, words) → (columns, in)."""
        inputs, count = words.shape
        octets = words.t().flatten().view(torch.uint8).view(count, inputs, 4).transpose(1, 2)
        fields = torch.stack((octets & 15, octets >> 4), 2).flatten(1, 2)  # (words, 8, in)
        return fields[:, list(_AWQ_FIELDS)].flatten(0, 1)

    def rows(first: int, last: int) -> Tensor:
        # The first one is a multiple of 16, and so of the columns of a word.
        return columns(qweight[:, first // 8 : -(-last // 8)])[: last - first]

    zeros = columns(parts["qzeros"])[: len(scales)].to(torch.int16)  # (out, groups)
    return Words(zeros, scales, group_size(quantization, width), None), rows


def fill_packed(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """How to read a matrix of compressed-tensors' packed form; its parts are by the last part of their names."""
    bits, scales = quantization.bits, parts["weight_scale"].float()
    zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.int16)
    if (given := parts.get("weight_zero_point")) is not None:  # (words of out, groups)
        zeros = fields(given.t(), bits)[:, : len(scales)].t().to(torch.int16)
    group = group_size(quantization, width)
    words = Words(zeros, scales, group, _group_of(parts.get("weight_g_idx"), group, width, scales))

    def fill(target: Target, first: int, rows: Tensor) -> None:
        fill_words(target, words, first, fields(rows, bits)[:, :width])

    return fill


def _group_of(index: Tensor | None, group: int, width: int, scales: Tensor) -> Tensor | None:
    """The group of each input; None: groups follow one another."""
    if index is None or torch.equal(index.long(), torch.arange(width) // group):
        return None
    if int(index.min()) < 0 or int(index.max()) >= scales.shape[1]:
        raise BrokenModelError(
            "A matrix of this model has inputs in groups that it does not have. The files are"
            " damaged; download the model again."
        )
    return index.long()


def fields(words: Tensor, bits: int) -> Tensor:
    """(n, words) i32 → (n, words · 32 / bits) u8, from the low end; fields may lie across words."""
    # Files are little-endian, and so is every processor that torch runs on.
    octets = words.flatten().view(torch.uint8).view(len(words), -1)
    if bits == 8:
        return octets
    if 8 % bits:  # eight fields in as many octets as they have bits
        octets = torch.nn.functional.pad(octets, (0, -octets.shape[1] % bits))
        several = octets.unflatten(1, (-1, bits)).long()
        joined = (several << torch.arange(0, 8 * bits, 8)).sum(2, keepdim=True)
        return ((joined >> torch.arange(0, 8 * bits, bits)) & ((1 << bits) - 1)).byte().flatten(1)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((octets[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)
