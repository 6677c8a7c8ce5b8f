"""The cache of a layer with a recurrent state, alone or beside keys and values."""

from math import prod

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.model.cache_rows import KeysAndValues
from potluck.model.caches import Held, RecurrentCache, RowsAndStateCache


class StateCache(LayerCache):
    """The state of a recurrent layer, and its checkpoints: (1, 1, 1 + checkpoints, numbers), f32.

    It has no rows of tokens: a mixer uses `state` instead of `write` and `read`. The number of
    tokens that each checkpoint has seen is in `held`.
    """

    __slots__ = ("_shapes",)

    def __init__(self, spec: RecurrentCache, device: torch.device):
        self.held = (0,) * spec.checkpoints
        self.shared = None
        self._shapes = spec.row.shapes
        self._set(torch.empty((1, 1, 0, spec.row.numbers), device=device))

    def state(self, position: int, which: slice = slice(None)) -> list[Tensor]:
        """Parts of the state before the token at `position`, which a step updates in place.

        Before the first token all their numbers are 0. `which` are those of the one who asks: a layer may have
        more with a state than its mixer.
        """
        parts = self.both[0, 0, 0].split([prod(shape) for shape in self._shapes])
        views = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)][which]
        if position == 0:
            for view in views:
                view.zero_()
        return views

    def advance(self, held: Held, end: int) -> None:
        """Copy the state, which has seen the tokens before `end`, to the checkpoint that is new."""
        states = self.both[0, 0]
        for row, (old, new) in enumerate(zip(self.held, held, strict=True), 1):
            if old != new:
                states[row].copy_(states[0])
        self.held = held

    def trim(self, position: int) -> None:
        """Go back to the checkpoint at `position`, or to the beginning."""
        super().trim(position)
        if position:
            states = self.both[0, 0]
            states[0].copy_(states[1 + self.held.index(position)])

    def copy(self, other: LayerCache, position: int) -> None:
        """Hold the state and all checkpoints. A trim to `position` may have to follow."""
        self.held = other.held
        self.both.copy_(other.both)


class RowsAndState(LayerCache):
    """Keys and values of one layer, and a state beside these. `held` is what both hold, the rows' position first."""

    __slots__ = ("state",)

    def __init__(self, spec: RowsAndStateCache, dtype: torch.dtype, device: torch.device):
        self.state = StateCache(spec.state, device)
        row = spec.row
        assert isinstance(row, KeysAndValues)
        super().__init__(row.heads, row.size, dtype, device)
        self._hold()

    @property
    def parts(self) -> tuple[LayerCache, ...]:
        return self, self.state

    def resize(self, rows: int, length: int) -> None:
        super().resize(rows, length)
        if not self.state.rows:
            self.state.resize(1 + len(self.state.held), 0)

    def advance(self, held: Held, end: int) -> None:
        self.state.advance(held[1:], end)
        self._hold()

    def trim(self, position: int) -> None:
        self.state.trim(position)
        self._hold()

    def copy(self, other: LayerCache, position: int) -> None:
        assert isinstance(other, RowsAndState)
        super().copy(other, position)
        self.state.copy(other.state, position)

    def clear(self) -> None:
        self.state.clear()
        super().clear()

    def _hold(self) -> None:
        self.held = (0, *self.state.held)
