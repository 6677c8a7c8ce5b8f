"""Read matrices that are stored quantised, and pass their integers on if the target can keep them.

`model/quantized.py` says in which tensors each method stores a matrix. Their bits mean:

    gptq    w[i, o] is the i % (32 / bits)-th field, from the low end, of qweight[i // (32 / bits), o];
            zero points lie so along o, one less than they are in the first version. A value is
            scales[g_idx[i], o] · (w - zero). (AutoGPTQ `qlinear`, GPTQModel `nn_modules/qlinear`)
    awq     along o in both, and the eight fields of a word are the columns 0 2 4 6 1 3 5 7.
            (AutoAWQ `utils/packing_utils.py`)
    packed  along i, with half of the range added to the integers; zero points lie along o.
            (compressed-tensors `compressors/pack_quantized/helpers.py`)
    mlx     along i, as `packed` without the half; a value is scale · w + bias (mlx.core.quantize)
    integers        a byte each, minus a zero point, times the scale of the group, row or matrix
    fp8, fp4, mxfp4, bitsandbytes  codes of floats: `codes.py`
    gguf    rows of blocks: `kernels/products/gguf_blocks.py`

Words of gptq, awq and packed are taken apart in `words.py`. Targets are given whole steps of rows. A target keeps the integers exactly if the groups of the method are
whole groups of 32 neighbouring inputs.
"""

from collections.abc import Callable, Container, Iterator, Mapping

import torch
from torch import Tensor

from potluck.engine.kernels.layout import GROUP, groups_of
from potluck.engine.kernels.products.gguf_blocks import block_integers, block_numbers, block_offsets
from potluck.engine.kernels.products.scaled import ScaledIntegers
from potluck.engine.kernels.products.tensors import DTYPES
from potluck.engine.loading.codes import (
    Fill,
    as_scales,
    fill_bitsandbytes,
    fill_e2m1,
    fill_fp4,
    fill_fp8,
    fill_mxfp4,
    from_e4m3,
)
from potluck.engine.loading.targets import Target
from potluck.engine.loading.words import (
    Words,
    awq,
    fields,
    fill_packed,
    fill_words,
    gptq,
    group_size,
    repeat,
    spread,
)
from potluck.errors import BrokenModelError
from potluck.model.quantized import GGUF, Method, Quantization, gguf_bytes

FLOATS = {plain.dtype: dtype for plain, dtype in DTYPES.items()}
INTEGERS = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "U8": torch.uint8}
PART_DTYPES: Mapping[str, torch.dtype] = {
    **FLOATS,
    "I32": torch.int32,
    "U32": torch.int32,  # whose bits are taken apart
    "I8": torch.int8,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.uint8,  # codes
}
_AT_ONCE = 1 << 19  # weights; fewer cost calls (1 << 16: half as fast), more do not fit the caches


class StoredRows:
    """The rows of a tensor that a file holds one after the other: their bytes, and how to read them."""

    def __init__(self, dtype: str, width: int) -> None:
        self._dtype, self._width = dtype, width
        plain = (FLOATS | INTEGERS).get(dtype)
        nbytes = gguf_bytes(dtype, (width,)) if plain is None else plain.itemsize * width
        assert nbytes is not None, f"{dtype} of {width}"
        self.nbytes = nbytes  # of a row

    def fill(self, target: Target, first: int, data: memoryview) -> None:
        """Hand these rows on; the first one is a multiple of the target's `step`."""
        if self._dtype in FLOATS:
            numbers = torch.frombuffer(data, dtype=FLOATS[self._dtype])
            target.fill(first, numbers.view(-1, self._width))
            return
        if self._dtype in INTEGERS:  # numbers of experts, which f32 holds exactly
            integers = torch.frombuffer(data, dtype=INTEGERS[self._dtype])
            target.fill(first, integers.view(-1, self._width).float())
            return
        blocks = torch.frombuffer(data, dtype=torch.uint8).view(-1, self.nbytes)
        kind = self._dtype.removeprefix(GGUF)
        has_offsets = target.format is not None and target.format.has_offsets
        if has_offsets and (parts := block_offsets(kind, blocks)) is not None:
            target.fill_integers(first, parts)
        elif (found := block_integers(kind, blocks)) is not None:
            target.fill_integers(first, found)
        else:
            target.fill(first, block_numbers(kind, blocks))


class PartRows:
    """The rows of a matrix in several tensors, one of which has them one after the other."""

    def __init__(
        self,
        quantization: Quantization,
        others: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        stored_width: int,
        width: int,
    ) -> None:
        """Prepare to read rows.

        Args:
            quantization: the model's; its `rows_part` is not None.
            others: the other tensors, by the last part of their names.
            dtype: of the tensor with the rows.
            stored_width: numbers of a row there.
            width: of the matrix.

        Raises:
            BrokenModelError: an input of the other tensors is in a group that does not exist.
        """
        self._dtype, self._stored_width, self._width = dtype, stored_width, width
        self._fill = _FILLS[quantization.method](quantization, others, width)
        self.nbytes = dtype.itemsize * stored_width  # of a row

    def fill(self, target: Target, first: int, data: memoryview) -> None:
        """Hand these rows on; the first one is a multiple of the target's `step`."""
        rows = torch.frombuffer(data, dtype=self._dtype).view(-1, self._stored_width)
        for start, stop in pieces(len(rows), target):
            self._fill(target, first + start, rows[start:stop])


_ROWS: Mapping[Method, tuple[str, ...]] = {
    "fp8": ("weight",),
    "fp4": ("weight_packed", "weight"),
    "integers": ("weight",),
    "packed": ("weight_packed",),
    "mxfp4": ("blocks",),
    "bitsandbytes": ("weight",),
    "mlx": ("weight",),
}


def rows_part(quantization: Quantization, names: Container[str]) -> str | None:
    """Of these last parts of names, that of the tensor with the rows one after the other; None: there is none."""
    return next((name for name in _ROWS.get(quantization.method, ()) if name in names), None)


def fill_from_parts(
    target: Target, quantization: Quantization, parts: Mapping[str, Tensor]
) -> None:
    """Fill a target from a matrix whose words lie across its rows.

    Args:
        target: where it goes.
        quantization: the model's; its `rows_part` is None.
        parts: all its tensors, by the last part of their names. Their shapes were checked.

    Raises:
        BrokenModelError: an input is in a group that does not exist.
    """
    words, read_rows = _COLUMNS[quantization.method](quantization, parts, target.width)
    for first, last in pieces(target.rows, target):
        fill_words(target, words, first, read_rows(first, last))


_COLUMNS = {"gptq": gptq, "awq": awq}


def _integers(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """Bytes with signs, a scale for each group, row or matrix, and perhaps zero points."""
    given = dict(parts)
    zeros = given.pop("weight_zero_point", None)
    (name,) = given
    scales = as_scales(given[name])
    if name == "SCB":  # bitsandbytes stores the largest magnitude of each row
        scales = scales / 127
    group = group_size(quantization, width)
    scales = scales if scales.ndim == 2 else scales.view(-1, 1)  # (out or 1, groups or 1)
    zeros = torch.zeros(1, 1, dtype=torch.int16) if zeros is None else zeros.to(torch.int16)
    zeros = zeros if zeros.ndim == 2 else zeros.view(-1, 1)

    def fill(target: Target, first: int, rows: Tensor) -> None:
        some = [one if len(one) == 1 else one[first : first + len(rows)] for one in (scales, zeros)]
        of_rows, of_groups = (
            one.expand(len(rows), max(scales.shape[1], one.shape[1])) for one in some
        )
        words = Words(of_groups, of_rows, group, None)
        stored = rows.to(torch.int16)
        integers = stored - spread(words, of_groups, width)
        low, high = integers.aminmax()
        if words.is_exact and low >= -128 and high <= 127:
            target.fill_integers(
                first, ScaledIntegers(integers.to(torch.int8), repeat(words, of_rows, width))
            )
        else:
            target.fill(first, integers.float() * spread(words, of_rows, width))

    return fill


def _mlx(quantization: Quantization, parts: Mapping[str, Tensor], width: int) -> Fill:
    """Fields from the low end, with a scale and an offset of each group, or floats of the microscaling formats."""
    del quantization  # each matrix may have bits and groups of its own
    stored, biases = parts["scales"], parts.get("biases")
    group = -(-width // max(1, stored.shape[1]))
    if "global_scale" in parts or (biases is None) != (stored.dtype == torch.uint8):
        raise BrokenModelError(
            "A matrix of this model is stored as MLX, with scales that Potluck does not know. Take the model in"
            " another form."
        )
    if biases is None:
        # Groups of 16 have scales of e4m3 (NVFP4), others powers of two (MXFP4, MXFP8).
        scales = from_e4m3(stored) if group < GROUP else as_scales(stored)
        return _mlx_floats(scales, group, width)
    if biases.shape != stored.shape:
        raise BrokenModelError(
            "A matrix of this model has not as many scales as offsets. The files are damaged; download them again."
        )
    return _mlx_integers(stored.float(), -biases.float(), group, width)


def _mlx_integers(scales: Tensor, offsets: Tensor, group: int, width: int) -> Fill:
    def fill(target: Target, first: int, rows: Tensor) -> None:
        integers = fields(rows, rows.shape[1] * 32 // width)[:, :width]
        some = slice(first, first + len(rows))
        held = target.format
        is_exact = held is not None and held.has_offsets and group % GROUP == 0
        if is_exact and held is not None and int(integers.max()) <= held.limits[1]:
            factors = [one[some].repeat_interleave(group // GROUP, 1) for one in (scales, offsets)]
            factors = [one[:, : groups_of(width)] for one in factors]
            target.fill_integers(first, ScaledIntegers(integers.to(torch.int8), *factors))
            return
        spread = [one[some].repeat_interleave(group, 1)[:, :width] for one in (scales, offsets)]
        target.fill(first, integers.float() * spread[0] - spread[1])

    return fill


def _mlx_floats(scales: Tensor, group: int, width: int) -> Fill:
    fill_4 = fill_e2m1(scales, group, width)

    def fill(target: Target, first: int, rows: Tensor) -> None:
        if rows.shape[1] * 32 // width == 4:
            fill_4(target, first, rows)
            return
        spread = scales[first : first + len(rows)].repeat_interleave(group, 1)[:, :width]
        target.fill(first, from_e4m3(rows.view(torch.uint8)) * spread)

    return fill


_FILLS: Mapping[str, Callable[[Quantization, Mapping[str, Tensor], int], Fill]] = {
    "packed": fill_packed,
    "integers": _integers,
    "fp8": fill_fp8,
    "fp4": fill_fp4,
    "mxfp4": fill_mxfp4,
    "bitsandbytes": fill_bitsandbytes,
    "mlx": _mlx,
}


def pieces(rows: int, target: Target) -> Iterator[tuple[int, int]]:
    """First row and end of each piece that the target takes."""
    step = max(1, _AT_ONCE // max(1, target.width) // target.step) * target.step
    for first in range(0, rows, step):
        yield first, min(first + step, rows)
