"""Put matrices that are stored quantised where they go, as integers where those can be kept.

`model/quantized.py` says in which tensors each format stores a matrix. The bits in them:

    gptq    w[i, o] is the i % (32 / bits)-th field, from the low end, of qweight[i // (32 / bits), o];
            zero points lie so along o, one less than they are in the first version. A value is
            scales[g_idx[i], o] · (w - zero). (AutoGPTQ `qlinear`, GPTQModel `nn_modules/qlinear`)
    awq     along o in both, and the eight fields of a word are the columns 0 2 4 6 1 3 5 7.
            (AutoAWQ `utils/packing_utils.py`)
    packed  along i, with half of the range added to the integers; zero points lie along o.
            (compressed-tensors `compressors/pack_quantized/helpers.py`)
    fp8, integers   a byte each, times the scale of the block, row or matrix
    gguf    rows of blocks: `gguf_blocks.py`

Whole blocks of rows reach the target, whose groups of 32 inputs hold the integers exactly where the
format's groups are made of those.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.gguf_blocks import block_integers, block_numbers
from potluck.engine.kernels.layout import GROUP, ROWS, groups_of
from potluck.engine.targets import Target
from potluck.errors import BrokenModelError
from potluck.model.config import ModelConfig
from potluck.model.quantized import GGUF, Quantization, gguf_bytes

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
PART_DTYPES: Mapping[str, torch.dtype] = {
    **FLOATS,
    "I32": torch.int32,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
}
_AT_ONCE = 1 << 19  # weights: fewer cost calls (1 << 16: half as fast), more leave the caches
_AWQ_FIELDS = (0, 4, 1, 5, 2, 6, 3, 7)  # of a word, those of the columns in order


class StoredRows:
    """How the rows of a tensor lie in a file, in which they follow one another, and what they are worth."""

    def __init__(self, dtype: str, width: int, *, interleaved: int | None = None) -> None:
        """`interleaved`: the size of heads whose rows stand pairwise (see `_in_halves`); None: in order."""
        self._dtype, self._width, self._interleaved = dtype, width, interleaved
        nbytes = FLOATS[dtype].itemsize * width if dtype in FLOATS else gguf_bytes(dtype, (width,))
        assert nbytes is not None, f"{dtype} of {width}"
        self.nbytes = nbytes  # of a row
        self.step = ROWS if interleaved is None else math.lcm(ROWS, interleaved)
        """Rows that have to be read together, or a multiple of them."""

    @classmethod
    def of(cls, config: ModelConfig, name: str, dtype: str, width: int) -> "StoredRows":
        """Those of a tensor of this model."""
        stored = config.quantization
        is_interleaved = stored is not None and stored.interleaved_heads
        is_turned = name.rpartition(".")[0].endswith(("self_attn.q_proj", "self_attn.k_proj"))
        head = config.head_dim if is_interleaved and is_turned else None
        return cls(dtype, width, interleaved=head)

    def fill(self, target: Target, first: int, data: memoryview) -> None:
        """Hand these rows on; the first one is a multiple of `step`."""
        if self._dtype in FLOATS:
            numbers = torch.frombuffer(data, dtype=FLOATS[self._dtype])
            target.fill(first, self._ordered(numbers.view(-1, self._width)))
            return
        blocks = torch.frombuffer(data, dtype=torch.uint8).view(-1, self.nbytes)
        kind = self._dtype.removeprefix(GGUF)
        ordered = self._ordered(blocks)
        if (found := block_integers(kind, ordered)) is not None:
            target.fill_integers(first, *found)
        else:
            target.fill(first, block_numbers(kind, ordered))

    def _ordered(self, rows: Tensor) -> Tensor:
        return rows if self._interleaved is None else _in_halves(rows, self._interleaved)


def fill_from_parts(
    target: Target, quantization: Quantization, parts: Mapping[str, Tensor]
) -> None:
    """Fill a target from all the tensors that its matrix is stored in.

    Args:
        target: where it goes.
        quantization: the model's.
        parts: by the last part of their names: `qweight`, `weight_scale`. Their shapes were checked.

    Raises:
        BrokenModelError: an index in them leads nowhere.
    """
    match quantization.method:
        case "fp8":
            _fill_numbers(target, quantization.block, parts)
        case "integers":
            scale = _scale_of_bytes(parts).float()
            by_row = scale.expand(target.rows, 1) if scale.numel() == 1 else scale.view(-1, 1)
            scales = by_row.expand(-1, groups_of(target.width))
            for first, last in _pieces(target):
                target.fill_integers(first, parts["weight"][first:last], scales[first:last])
        case "gptq" | "awq" | "packed":
            _fill_words(target, _WORDS[quantization.method](quantization, parts, target.width))
        case "gguf":
            raise AssertionError("blocks are read row by row")


@dataclass(frozen=True, slots=True)
class _Words:
    """A matrix of integers less their zero points, times a scale for each group of inputs."""

    rows: Callable[[int, int], Tensor]  # the integers (n, width) as they are stored, u8
    zeros: Tensor  # (out, groups), i16
    scales: Tensor  # (out, groups), f32
    group_of: Tensor | None  # the group of each input; None: they follow one another
    group: int  # inputs


def _fill_words(target: Target, words: _Words) -> None:
    width = target.width
    is_exact = words.group_of is None and (words.group % GROUP == 0 or words.zeros.shape[1] == 1)
    middle = int(words.zeros.flatten()[0]) if words.zeros.numel() else 0
    is_symmetric = bool((words.zeros == middle).all())
    for first, last in _pieces(target):
        stored, scales = words.rows(first, last), words.scales[first:last]
        zeros = middle if is_symmetric else _spread(words, words.zeros[first:last], width)
        integers = stored.to(torch.int16) - zeros
        low, high = integers.aminmax()
        if is_exact and low >= -128 and high <= 127:
            repeated = scales.repeat_interleave(max(1, words.group // GROUP), 1)
            if words.zeros.shape[1] == 1:
                repeated = scales.expand(-1, groups_of(width))
            target.fill_integers(first, integers.to(torch.int8), repeated[:, : groups_of(width)])
        else:
            target.fill(first, integers.float() * _spread(words, scales, width))


def _spread(words: _Words, of_groups: Tensor, width: int) -> Tensor:
    """(n, groups) → (n, width)."""
    if words.group_of is not None:
        return of_groups.index_select(1, words.group_of)
    return of_groups.repeat_interleave(words.group, 1)[:, :width]


def _gptq(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> _Words:
    bits, qweight = quantization.bits, parts["qweight"]  # (words of in, out)
    scales = parts["scales"].float().t().contiguous()
    zeros = _fields(parts["qzeros"], bits)[:, : len(scales)].t().to(torch.int16)  # (out, groups)
    # What was no zero point but -1 is one of 0.
    zeros = (zeros + quantization.zero_offset) & ((1 << bits) - 1)
    group = quantization.group_size or width

    def rows(first: int, last: int) -> Tensor:
        return _fields(qweight[:, first:last].t().contiguous(), bits)[:, :width]

    return _Words(rows, zeros, scales, _group_of(parts.get("g_idx"), group, width, scales), group)


def _awq(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> _Words:
    qweight = parts["qweight"]  # (in, words of out)
    scales = parts["scales"].float().t().contiguous()

    def columns(words: Tensor) -> Tensor:
        """(in, words) → (columns, in)."""
        inputs, count = words.shape
        octets = words.t().contiguous().view(torch.uint8).view(count, inputs, 4).transpose(1, 2)
        fields = torch.stack((octets & 15, octets >> 4), 2).flatten(1, 2)  # (words, 8, in)
        return fields[:, list(_AWQ_FIELDS)].flatten(0, 1)

    def rows(first: int, last: int) -> Tensor:
        # The first one is a multiple of 16, and so of the columns of a word.
        return columns(qweight[:, first // 8 : -(-last // 8)])[: last - first]

    zeros = columns(parts["qzeros"])[: len(scales)].to(torch.int16)  # (out, groups)
    return _Words(rows, zeros, scales, None, quantization.group_size or width)


def _packed(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> _Words:
    bits, words = quantization.bits, parts["weight_packed"]  # (out, words of in)
    scales = parts["weight_scale"].float()
    zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.int16)
    if (given := parts.get("weight_zero_point")) is not None:  # (words of out, groups)
        zeros = _fields(given.t().contiguous(), bits)[:, : len(scales)].t().to(torch.int16)
    group = quantization.group_size or width

    def rows(first: int, last: int) -> Tensor:
        return _fields(words[first:last], bits)[:, :width]

    order = _group_of(parts.get("weight_g_idx"), group, width, scales)
    return _Words(rows, zeros, scales, order, group)


_WORDS = {"gptq": _gptq, "awq": _awq, "packed": _packed}


def _group_of(index: Tensor | None, group: int, width: int, scales: Tensor) -> Tensor | None:
    """The group of each input, where they do not simply follow one another."""
    if index is None or torch.equal(index.long(), torch.arange(width) // group):
        return None
    if int(index.min()) < 0 or int(index.max()) >= scales.shape[1]:
        raise BrokenModelError(
            "A matrix of this model has inputs in groups that it does not have. The files are"
            " damaged; download the model again."
        )
    return index.long()


def _fields(words: Tensor, bits: int) -> Tensor:
    """(n, words) i32 → (n, words · 32 / bits) u8, from each word's low end. The words are contiguous."""
    octets = words.view(torch.uint8)  # little-endian, as the files are and all that runs torch
    if bits == 8:
        return octets
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((octets[..., None] >> shifts) & ((1 << bits) - 1)).flatten(1)


def _fill_numbers(
    target: Target, block: tuple[int, int] | None, parts: Mapping[str, Tensor]
) -> None:
    weight, scale = parts["weight"], _scale_of_bytes(parts).float()
    for first, last in _pieces(target):
        values = _from_e4m3(weight[first:last])
        if block is not None:
            blocks = scale[torch.arange(first, last) // block[0]]  # (n, blocks of inputs)
            values *= blocks.repeat_interleave(block[1], 1)[:, : target.width]
        else:
            values *= scale if scale.numel() == 1 else scale.view(-1, 1)[first:last]
        target.fill(first, values)


def _from_e4m3(stored: Tensor) -> Tensor:
    """As f32, seven times faster than torch: shifted into place as f16, whose exponents count from 8 more."""
    bits = stored.view(torch.uint8).to(torch.int16)
    if bool(((bits & 0x7F) == 0x7F).any()):  # no numbers, which would become some
        return stored.float()
    return ((bits << 8) & -0x8000 | (bits << 7) & 0x3F80).view(torch.float16).float().mul_(256)


def _scale_of_bytes(parts: Mapping[str, Tensor]) -> Tensor:
    return next(part for name, part in parts.items() if name != "weight")


def _pieces(target: Target) -> Iterator[tuple[int, int]]:
    """First row and end of each piece, of whole blocks of rows."""
    step = max(ROWS, _AT_ONCE // max(1, target.width) // ROWS * ROWS)
    for first in range(0, target.rows, step):
        yield first, min(first + step, target.rows)


def _in_halves(rows: Tensor, head: int) -> Tensor:
    """Undo llama.cpp's order of the rows of queries and keys.

    Its rotary turns neighbours, Hugging Face's the halves of a head: row 2i + j of a head belongs to
    place i of half j (`LlamaModel.permute` in convert_hf_to_gguf.py).
    """
    pairs = rows.unflatten(0, (-1, head // 2, 2))  # (heads, K / 2, 2, …)
    return pairs.transpose(1, 2).flatten(0, 2)
