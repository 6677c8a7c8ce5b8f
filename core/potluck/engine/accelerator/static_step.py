"""One token through layers with the same operators on the same memory, whatever its position.

That is what a graph captures. The layers are the ordinary ones (`blocks.py`); the step and the caches are
of other classes: the position is a number on the device, and caches are written there. Attention reads a
prefix of a cache, whose length is one of a few, with a mask that all layers share. It runs on the CPU
too, where it is tested against the layers at known positions; on a GPU it has not run.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.attention import Span, Step
from potluck.engine.blocks import DecoderLayer
from potluck.engine.kvcache import GRANULE, LayerCache


class StaticInputs:
    """What differs from token to token, in memory that stays in place: hidden states, position, angles."""

    def __init__(self, x: Tensor, step: Step) -> None:
        """Allocate memory for inputs like these."""
        self.hidden = torch.empty_like(x)  # (1, D)
        self.position = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.angles = [(cos.clone(), sin.clone()) for cos, sin in step.angles]  # (1, 1, dim) each

    def load(self, x: Tensor, step: Step) -> None:
        self.hidden.copy_(x)
        self.position.fill_(step.position)
        for (cos, sin), (new_cos, new_sin) in zip(self.angles, step.angles, strict=True):
            cos.copy_(new_cos)
            sin.copy_(new_sin)


class StaticStep(Step):
    """A step of one token at the position of the inputs; it sees the first `length` cached tokens."""

    __slots__ = ("_dtype", "_length", "_static_position")

    def __init__(self, inputs: StaticInputs, length: int) -> None:
        super().__init__(0, 1, (), inputs.position.device)
        self.angles = inputs.angles
        self._static_position, self._length = inputs.position, length
        self._dtype = inputs.hidden.dtype

    def _make_span(self, window: int | None) -> Span:
        """Made once for all layers with this window; the mask is 0 where they look, -inf elsewhere."""
        back = self._static_position - torch.arange(self._length, device=self._device)
        hidden = back < 0
        if window is not None:
            hidden |= back >= window
        mask = torch.zeros(self._length, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden, -torch.inf)
        return Span(0, self._length, mask[None], is_causal=False)  # (1, length)


class StaticCache(LayerCache):
    """The memory of a layer's cache as it is now, written at the position of the inputs."""

    __slots__ = ("_position",)

    def __init__(self, cache: LayerCache, position: Tensor) -> None:
        self._set(cache.both)
        self._position = position

    def write(self, position: int, kv: Tensor) -> None:
        """Store (1, 2·Hkv, K) at the position of the inputs; `position` is ignored."""
        both = self.both
        both.index_copy_(2, self._position, kv.to(both.dtype).view(2, -1, 1, kv.shape[-1]))


def static_forward(
    blocks: Sequence[DecoderLayer],
    caches: Sequence[LayerCache],
    inputs: StaticInputs,
    length: int,
) -> Tensor:
    """The token of the inputs through the layers, (1, D).

    Past the position, the first `length` tokens of the caches must hold finite numbers (`clear_rest`).
    """
    step = StaticStep(inputs, length)
    x = inputs.hidden
    for block, cache in zip(blocks, caches, strict=True):
        x = block.forward(x, StaticCache(cache, inputs.position), step)
    return x


def prefix_length(position: int, capacity: int) -> int:
    """How much of a cache attention reads: of the lengths 256 · 2ⁿ the least that holds the position."""
    length = GRANULE
    while length <= position:
        length *= 2
    return min(length, capacity)


def clear_rest(caches: Sequence[LayerCache], position: int, length: int) -> None:
    """Write zeros where nothing is cached yet: a mask hides numbers, but not NaN."""
    for cache in caches:
        cache.both[:, :, position:length].zero_()
