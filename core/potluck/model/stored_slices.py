"""Which bytes of a stored tensor a rank of a group needs: a content of their own, with a digest of its own.

`shares.py` says which rows or columns of a tensor a rank has. A stored tensor is rows one after the other, each of
blocks that cannot be taken apart. So its bytes are cut between blocks: where a rank's part ends within a block, the whole block
is in the slice, and the rank leaves out the rest when it loads (`StoredSlice.within`).

Whole for every rank stay tensors whose numbers lie across rows or in several tensors (GPTQ, FP8 with its scales…), until they
are packed, and what is put into another order, or multiplied, in other pieces than the rank's when it is loaded.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from potluck.errors import BrokenModelError
from potluck.model.byte_runs import ByteRuns
from potluck.model.checkpoint.stored import Described, stored_bytes
from potluck.model.config import ModelConfig, Shape
from potluck.model.formats import PACKED_DTYPES, PLAIN_DTYPES, STEP_BYTES, SUPER_BLOCKS
from potluck.model.quantized import GGUF, GGUF_BLOCKS
from potluck.model.schemes import Scheme
from potluck.model.shares import Ranges, Share, TensorSlice, layer_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlice:
    """The bytes of a tensor that a rank is sent.

    Attributes:
        shape: of the slice, with the blocks that are in it as a whole.
        nbytes: of the slice.
        runs: where its bytes are among those of the tensor.
        whole_bytes: of the tensor.
        within: what of the slice the rank has; None: all of it.
    """

    shape: Shape
    runs: ByteRuns
    whole_bytes: int
    within: TensorSlice | None

    @property
    def nbytes(self) -> int:
        return self.runs.nbytes


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the bytes of a matrix follow each other: bands of rows, each of sections one after the other."""

    rows: int  # of a band
    sections: tuple[tuple[int, int], ...]  # for how many columns they have a piece, and its bytes

    @property
    def columns(self) -> int:
        """Columns that cannot be taken apart."""
        return max(columns for columns, _ in self.sections)

    def band_bytes(self, width: int) -> int:
        return sum(-(-width // columns) * nbytes for columns, nbytes in self.sections)


def stage_slices(
    config: ModelConfig, layers: Iterable[int], share: Share, scheme: Scheme
) -> dict[str, TensorSlice]:
    """The slices that a rank holds of the tensors of these layers; it has all others as a whole."""
    slices: dict[str, TensorSlice] = {}
    for layer in layers:
        slices |= layer_slices(config, layer, share, scheme)
    return slices


def stored_slice(
    config: ModelConfig, name: str, part: TensorSlice, dtype: str, shape: Shape
) -> StoredSlice | None:
    """The bytes that hold a rank's part of a tensor that is stored so; None: all bytes do."""
    is_ordered = part.axis == "rows" and dtype not in PACKED_DTYPES
    if is_ordered and not _keeps_order(config, name, part.ranges):
        return None
    return _stored_slice(part, dtype, shape)


@lru_cache(maxsize=1024)  # experts, and layers, are alike
def _stored_slice(part: TensorSlice, dtype: str, shape: Shape) -> StoredSlice | None:
    layout, whole = _layout(dtype), stored_bytes(dtype, shape)
    if layout is None or whole is None or not _is_ordered(part.ranges):
        return None
    if len(shape) == 1 and layout.columns > 1:
        return None  # its blocks lie across what would be its rows
    width = prod(shape[1:])
    if part.axis == "rows":
        cover = _widened(part.ranges, layout.rows, shape[0])
        band = layout.band_bytes(width)
        places = [(a // layout.rows * band, -(-b // layout.rows) * band) for a, b in cover]
        runs = ByteRuns(period=whole, count=1, runs=tuple(places))
    elif len(shape) == 2:
        cover = _widened(part.ranges, layout.columns, width)
        bands = -(-shape[0] // layout.rows)
        runs = ByteRuns(
            period=layout.band_bytes(width), count=bands, runs=_columns(layout, width, cover)
        )
    else:
        return None
    if runs.nbytes >= whole:
        return None
    return StoredSlice(
        shape=TensorSlice(axis=part.axis, ranges=cover).shape(shape),
        runs=runs,
        whole_bytes=whole,
        within=None
        if part.ranges == cover
        else TensorSlice(axis=part.axis, ranges=_within(part.ranges, cover)),
    )


def find_slices(
    config: ModelConfig,
    wanted: Mapping[str, Shape],
    slices: Mapping[str, TensorSlice],
    given: Mapping[str, Described],
    names: Collection[str],
) -> dict[str, StoredSlice]:
    """Those tensors of a stage that are given as a rank's slice, by name.

    Args:
        config: of the whole model.
        wanted: the tensors of the stage and their shapes in the whole model.
        slices: what the rank has of them; empty: it is no rank.
        given: the stored tensors by name.
        names: which of these are slices, as who gave them says. What the stage does not want is left out.

    Raises:
        BrokenModelError: a tensor is called a slice of which the rank needs all.
    """
    found: dict[str, StoredSlice] = {}
    for name in names:
        if (shape := wanted.get(name)) is None:
            continue
        one, part = None, slices.get(name)
        if part is not None:
            one = stored_slice(config, name, part, given[name].dtype, shape)
        if one is None:
            raise BrokenModelError(
                f"Tensor {name[:80]} was announced as a part, which no computer of the group has of it."
                " Use the same version of Potluck on all computers.",
                tensor=name[:80],
            )
        found[name] = one
    return found


def _layout(dtype: str) -> _Layout | None:
    """None: the numbers are stored in another way."""
    if (plain := PLAIN_DTYPES.get(dtype)) is not None:
        return _Layout(1, ((1, plain.block_bytes),))
    if (packed := PACKED_DTYPES.get(dtype)) is not None:
        blocks = (packed.block_inputs, packed.block_bytes)
        steps = (SUPER_BLOCKS * packed.block_inputs, STEP_BYTES)
        return _Layout(packed.block_rows, (steps, blocks) if packed.has_steps else (blocks,))
    block = GGUF_BLOCKS.get(dtype.removeprefix(GGUF)) if dtype.startswith(GGUF) else None
    return None if block is None else _Layout(1, (block,))


def _is_ordered(ranges: Ranges) -> bool:
    """Whether there are ranges, none of which begins before the one before it ends."""
    ends = [end for both in ranges for end in both]
    return bool(ends) and ends == sorted(ends)


def _keeps_order(config: ModelConfig, name: str, ranges: Ranges) -> bool:
    """Whether rows that are put into order or multiplied when they are loaded are so in the slice too."""
    pairs = config.paired_rows(name)
    has_heads = pairs is None or not any(end % pairs.head for both in ranges for end in both)
    return has_heads and not config.row_scales(name)


def _widened(ranges: Ranges, unit: int, size: int) -> Ranges:
    """The smallest ranges of whole units that have all of these; the last unit of all may be cut off."""
    wide: list[tuple[int, int]] = []
    for first, last in ranges:
        start, stop = first // unit * unit, min(-(-last // unit) * unit, size)
        if wide and start < wide[-1][1]:
            start = wide.pop()[0]
        wide.append((start, stop))
    return tuple(wide)


def _within(ranges: Ranges, cover: Ranges) -> Ranges:
    """Where these are in what the ranges that cover them have, one after the other."""
    inner: list[tuple[int, int]] = []
    place = 0
    for start, stop in cover:
        own = [both for both in ranges if start <= both[0] and both[1] <= stop]
        inner += [(place + first - start, place + last - start) for first, last in own]
        place += stop - start
    return tuple(inner)


def _columns(layout: _Layout, width: int, cover: Ranges) -> tuple[tuple[int, int], ...]:
    """The bytes of a band that hold these columns."""
    places: list[tuple[int, int]] = []
    start = 0
    for columns, nbytes in layout.sections:
        places += [
            (start + a // columns * nbytes, start + -(-b // columns) * nbytes) for a, b in cover
        ]
        start += -(-width // columns) * nbytes
    return tuple(places)
