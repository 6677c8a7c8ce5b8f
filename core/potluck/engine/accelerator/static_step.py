"""One token through layers with the same operators on the same memory, whatever its position.

That is what a graph captures. The layers are the ordinary ones (`blocks.py`); the step and the caches are
of other classes: the position is a number on the device, and caches are written there. Attention reads the
first rows of a cache, whose number is one of a few, with a mask that all layers of one window share. It runs
on the CPU too, where it is tested against the layers at known positions; on a GPU it has not run.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from potluck.engine.attention import Span, Step
from potluck.engine.blocks import DecoderLayer
from potluck.engine.kvcache import GRANULE, LayerCache


class StaticInputs:
    """What differs from token to token, in memory that stays in place: hidden states, cache rows, angles."""

    def __init__(self, x: Tensor, step: Step, rows: Mapping[int | None, int]) -> None:
        """Make memory for inputs like these, which `load` describes."""
        self.hidden = torch.empty_like(x)  # (1, D)
        self.rows = {window: torch.zeros(1, dtype=torch.int64, device=x.device) for window in rows}
        self.angles = [(cos.clone(), sin.clone()) for cos, sin in step.angles]  # (1, 1, dim) each

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
        for (cos, sin), (new_cos, new_sin) in zip(self.angles, step.angles, strict=True):
            cos.copy_(new_cos)
            sin.copy_(new_sin)


class StaticStep(Step):
    """A step of one token in the rows of the inputs, which looks at the first rows of each cache.

    `lengths` says at how many, for each window that layers have.
    """

    __slots__ = ("_dtype", "_lengths", "_rows")

    def __init__(self, inputs: StaticInputs, lengths: Mapping[int | None, int]) -> None:
        super().__init__(0, 1, (), inputs.hidden.device)
        self.angles = inputs.angles
        self._rows, self._lengths = inputs.rows, lengths
        self._dtype = inputs.hidden.dtype

    def _make_span(self, window: int | None) -> Span:
        """Made once for all layers with this window; the mask is 0 where they look, -inf elsewhere."""
        length = self._lengths[window]
        back = self._rows[window] - torch.arange(length, device=self._device)
        hidden = back < 0
        if window is not None:
            hidden |= back >= window
        mask = torch.zeros(length, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, -torch.inf)
        return Span(0, length, mask[None], is_causal=False)  # (1, length)


class StaticCache(LayerCache):
    """The memory of a layer's cache as it is now, written in a row of the inputs."""

    __slots__ = ("_row",)

    def __init__(self, cache: LayerCache, row: Tensor) -> None:
        self._set(cache.both)
        self.first, self._row = 0, row

    def write(self, position: int, kv: Tensor) -> None:
        """Store (1, 2·Hkv, K) in the row of the inputs; `position` is ignored."""
        both = self.both
        both.index_copy_(2, self._row, kv.to(both.dtype).view(2, -1, 1, kv.shape[-1]))


def static_forward(
    blocks: Sequence[DecoderLayer],
    caches: Sequence[LayerCache],
    inputs: StaticInputs,
    lengths: Mapping[int | None, int],
) -> Tensor:
    """Run the token of the inputs through the layers, (1, D).

    Behind the token's row, the first rows of the caches must hold finite numbers (`clear_rest`).
    """
    step = StaticStep(inputs, lengths)
    x = inputs.hidden
    for block, cache in zip(blocks, caches, strict=True):
        x = block.forward(x, StaticCache(cache, inputs.rows[block.attention.window]), step)
    return x


def prefix_length(row: int, rows: int) -> int:
    """How many rows of a cache attention reads: of 256 · 2ⁿ the least that holds this row, at most all."""
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
    """Zero the rows that hold no token yet. A mask hides numbers, but not what is not a number."""
    for block, cache in zip(blocks, caches, strict=True):
        cache.both[:, :, position - cache.first : lengths[block.attention.window]].zero_()
