"""Run one token through layers with the same operators on the same memory, whatever its position.

A graph captures such a run. The layers are the ordinary ones (`blocks.py`), but the step and the
caches have classes of their own: the position is a number on the device, and the cache row with
that number is written. Attention reads the first rows of a cache. The number of these rows has only
a few values, and all layers of one window share a mask. The code runs on the CPU too, where it is
tested against the layers at known positions.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import GRANULE, LayerCache
from potluck.engine.layers.attention import Attention, Span, Step
from potluck.engine.layers.blocks import DecoderLayer


class StaticInputs:
    """Hidden states, cache rows and angles of the current token, in memory that stays in place."""

    def __init__(self, x: Tensor, step: Step, rows: Mapping[int | None, int]) -> None:
        """Make memory for inputs of these shapes. `load` describes the arguments."""
        self.hidden = torch.empty_like(x)  # (1, D)
        self.rows = {window: torch.zeros(1, dtype=torch.int64, device=x.device) for window in rows}
        self.angles = [angles.clone() for angles in step.angles]

    def load(self, x: Tensor, step: Step, rows: Mapping[int | None, int]) -> None:
        """Write the inputs of a token.

        Args:
            x: hidden states (1, D).
            step: at the token's position.
            rows: the token's row in the caches of the layers, for each window that layers have.
        """
        self.hidden.copy_(x)
        for window, row in rows.items():
            self.rows[window].fill_(row)
        for angles, new in zip(self.angles, step.angles, strict=True):
            angles.copy_(new)


class StaticStep(Step):
    """A step of one token, in the rows that the inputs name; it attends to a cache's first rows.

    `lengths` has the number of these rows, for each window that layers have.
    """

    __slots__ = ("_dtype", "_lengths", "_rows")

    def __init__(self, inputs: StaticInputs, lengths: Mapping[int | None, int]) -> None:
        super().__init__(0, 1, (), inputs.hidden.device)
        self.angles = inputs.angles
        self._rows, self._lengths = inputs.rows, lengths
        self._dtype = inputs.hidden.dtype

    def _make_span(self, window: int | None) -> Span:
        """Made once for all layers with this window. The mask is 0 for rows they see, else -inf."""
        length = self._lengths[window]
        back = self._rows[window] - torch.arange(length, device=self._device)
        hidden = back < 0
        if window is not None:
            hidden |= back >= window
        mask = torch.zeros(length, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, -torch.inf)
        return Span(0, length, mask[None], is_causal=False)  # (1, length)


class StaticCache(LayerCache):
    """A view of a layer's cache. The row to write is read from the inputs of the graph."""

    __slots__ = ("_row",)

    def __init__(self, cache: LayerCache, row: Tensor) -> None:
        self._set(cache.both)
        self.held, self._row = (0,), row

    def write(self, position: int, kv: Tensor) -> None:
        """Store (1, 2·Hkv, K) in the row that the inputs name; `position` is ignored."""
        both = self.both
        both.index_copy_(2, self._row, kv.to(both.dtype).view(2, -1, 1, kv.shape[-1]))


def window_of(block: DecoderLayer) -> int | None:
    """The window of a layer with attention, which all layers of a graph have (`graph_runs`)."""
    assert isinstance(block.mixer, Attention)
    return block.mixer.window


def static_forward(
    blocks: Sequence[DecoderLayer],
    caches: Sequence[LayerCache],
    inputs: StaticInputs,
    lengths: Mapping[int | None, int],
) -> Tensor:
    """Run the token of the inputs through the layers, (1, D).

    The rows that attention reads behind the token's own must hold finite numbers (`clear_rest`).
    """
    step = StaticStep(inputs, lengths)
    x = inputs.hidden
    for block, cache in zip(blocks, caches, strict=True):
        x = block.forward(x, StaticCache(cache, inputs.rows[window_of(block)]), step)
    return x


def prefix_length(row: int, rows: int) -> int:
    """How many rows attention reads: the least 256 · 2ⁿ that holds `row`, but at most `rows`."""
    length = GRANULE
    while length <= row:
        length *= 2
    return min(length, rows)


def clear_rest(
    blocks: Sequence[DecoderLayer],
    caches: Sequence[LayerCache],
    position: int,
    lengths: Mapping[int | None, int],
) -> None:
    """Zero the rows that hold no token yet. A mask hides finite numbers, but not NaN."""
    for block, cache in zip(blocks, caches, strict=True):
        cache.both[:, :, position - cache.first : lengths[window_of(block)]].zero_()
