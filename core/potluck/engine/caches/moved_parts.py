"""What of a session's cache moves to another stage: the parts of its layers, each a memory of rows or of a state.

A part is counted in units: positions, values of a state, or pools of tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.pool_cache import PoolCache
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.state_cache import RowsAndState
from potluck.model.caches import (
    CacheSpec,
    FullCache,
    PooledCache,
    RecurrentCache,
    RowsAndStateCache,
    WindowCache,
)

PIECE = 1 << 20  # bytes of rows that go at once: a millisecond on the thread that computes

PartKey: TypeAlias = tuple[int, int]  # the model's number of a layer, and that of the part in it


class MovedPart(ABC):
    """One memory of a layer's cache, (2, heads, rows, numbers) or (1, 1, rows, numbers).

    Attributes:
        axis: of the memory, on which its units are.
        is_streamed: whether units stay as they are once their tokens are computed. Else they go with the last token.
    """

    axis: ClassVar[int] = 2
    is_streamed: ClassVar[bool] = False

    def __init__(self, cache: LayerCache) -> None:
        self.cache = cache

    @property
    def memory(self) -> Tensor:
        """As it is now: it becomes another one when the cache grows."""
        return self.cache.both

    @property
    def begin(self) -> int:
        """The first unit that is held."""
        return self.cache.first

    def units(self, tokens: int) -> int:
        """How many units there are before a position."""
        return tokens

    def tokens(self, units: int) -> int:
        """Of how many tokens so many units are."""
        return units

    @property
    def at_once(self) -> int:
        """How many units make a piece."""
        memory = self.memory
        one = memory.itemsize if self.axis == 3 else memory[:, :, :1].nbytes
        return max(1, PIECE // max(1, one))

    def read(self, first: int, stop: int) -> Tensor:
        """Some units."""
        return self.memory[:, :, first - self.begin : stop - self.begin]

    def place(self, memory: Tensor, first: int, stop: int, begin: int) -> Tensor:
        """Some units in memory that is laid out as this one, and begins with the unit `begin`."""
        return memory[:, :, first - begin : stop - begin]

    @abstractmethod
    def rows_apart(self, end: int) -> int:
        """Rows of memory in which they wait, if the session has tokens already: what these left would be replaced."""

    def has_enough(self, first: int, end: int) -> bool:
        """Whether the units from `first` on are all that is needed behind the token before `end`."""
        return True

    @abstractmethod
    def hold(self, first: int, end: int) -> None:
        """Have the cache hold the units from `first` on, up to the token before `end`."""


class RowsPart(MovedPart):
    """Rows of all positions, the first of which may be shared with other sessions."""

    is_streamed = True

    def read(self, first: int, stop: int) -> Tensor:
        both, shared, begin = self.cache.both, self.cache.shared, self.begin
        own = both[:, :, max(first, begin) - begin : max(stop, begin) - begin]
        if shared is None or first >= begin:
            return own
        return torch.cat([shared[:, :, first : min(stop, begin)], own], 2)

    def rows_apart(self, end: int) -> int:
        return 0

    def hold(self, first: int, end: int) -> None:
        pass  # from its first row on, as before


class WindowPart(MovedPart):
    """Rows of the last positions."""

    def __init__(self, cache: LayerCache, spec: WindowCache) -> None:
        super().__init__(cache)
        self._spec = spec

    def rows_apart(self, end: int) -> int:
        return self._spec.rows(end)

    def has_enough(self, first: int, end: int) -> bool:
        return self._spec.trim((first,), end) == end

    def hold(self, first: int, end: int) -> None:
        self.cache.held = (first,)


class StatePart(MovedPart):
    """A state, without its checkpoints."""

    axis = 3

    def __init__(self, cache: LayerCache, spec: RecurrentCache) -> None:
        super().__init__(cache)
        self._spec = spec

    @property
    def begin(self) -> int:
        return 0

    def units(self, tokens: int) -> int:
        return self.memory.shape[3]

    def read(self, first: int, stop: int) -> Tensor:
        return self.memory[:, :, :1, first:stop]

    def place(self, memory: Tensor, first: int, stop: int, begin: int) -> Tensor:
        return memory[:, :, :1, first:stop]

    def rows_apart(self, end: int) -> int:
        return 1

    def hold(self, first: int, end: int) -> None:
        nothing = (0,) * len(self.cache.held)
        self.cache.held = nothing
        # Where an answer begins, there is a checkpoint.
        self.cache.advance(self._spec.advance(nothing, end, 2), end)


class BesideRowsPart(StatePart):
    """A state beside rows of all positions."""

    def __init__(self, whole: RowsAndState, spec: RecurrentCache) -> None:
        super().__init__(whole.state, spec)
        self._whole = whole

    def hold(self, first: int, end: int) -> None:
        super().hold(first, end)
        self._whole.held = (0, *self.cache.held)


class PooledTokensPart(WindowPart):
    """Rows of the last tokens, with what pools are made of."""

    cache: PoolCache

    @property
    def memory(self) -> Tensor:
        return self.cache.token_rows

    def rows_apart(self, end: int) -> int:
        return self.cache.spec.token_rows(end)


class PoolsPart(MovedPart):
    """The keys of all whole pools."""

    cache: PoolCache
    is_streamed = True

    @property
    def memory(self) -> Tensor:
        return self.cache.pool_rows

    @property
    def begin(self) -> int:
        return 0

    def units(self, tokens: int) -> int:
        return self.cache.spec.pools(tokens)

    def tokens(self, units: int) -> int:
        return units * self.cache.spec.rate

    def rows_apart(self, end: int) -> int:
        return 0

    def hold(self, first: int, end: int) -> None:
        pass  # as many as the tokens make


def parts_of(spec: CacheSpec, cache: LayerCache) -> tuple[MovedPart, ...]:
    """The parts of a layer's cache."""
    if isinstance(spec, PooledCache):
        assert isinstance(cache, PoolCache)
        return PooledTokensPart(cache, spec), PoolsPart(cache)
    if isinstance(spec, RowsAndStateCache):
        assert isinstance(cache, RowsAndState)
        return RowsPart(cache), BesideRowsPart(cache, spec.state)
    if isinstance(spec, RecurrentCache):
        return (StatePart(cache, spec),)
    return (WindowPart(cache, spec) if isinstance(spec, WindowCache) else RowsPart(cache),)


def moved_parts(
    cache: SessionCache, specs: Sequence[CacheSpec], numbers: Sequence[int]
) -> Iterator[tuple[PartKey, MovedPart]]:
    """All parts of a cache, without the layers that cache nothing; `numbers` are those of the layers.

    Layers that have one cache have the same parts.
    """
    made: dict[LayerCache, tuple[MovedPart, ...]] = {}
    for number, spec, layer in zip(numbers, specs, cache.layers, strict=True):
        if spec.row.nbytes:
            if layer not in made:
                made[layer] = parts_of(spec, layer)
            for index, part in enumerate(made[layer]):
                yield (number, index), part


def bytes_moved(specs: Iterable[CacheSpec], begin: int, end: int) -> int:
    """Bytes that come for the tokens from `begin` to `end`. Windows and states come whole, whatever is there.

    `specs` are of the caches, those that layers share once.
    """
    return sum(_streamed(spec, begin, end) + _apart(spec, end) for spec in specs)


def bytes_apart(specs: Iterable[CacheSpec], begin: int, end: int) -> int:
    """Bytes in which they wait beside the session's cache."""
    return sum(_apart(spec, end) for spec in specs) if begin else 0


def _streamed(spec: CacheSpec, begin: int, end: int) -> int:
    if isinstance(spec, PooledCache):
        return (spec.pools(end) - spec.pools(begin)) * spec.row.nbytes
    has_rows = isinstance(spec, FullCache | RowsAndStateCache)
    return (end - begin) * spec.row.nbytes if has_rows else 0


def _apart(spec: CacheSpec, end: int) -> int:
    match spec:
        case FullCache():
            return 0
        case RecurrentCache():
            return spec.row.nbytes
        case RowsAndStateCache():
            return spec.state.row.nbytes
        case PooledCache():
            return spec.token_rows(end) * spec.row.units * spec.row.nbytes
        case _:
            return spec.rows(end) * spec.row.nbytes
