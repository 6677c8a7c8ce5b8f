"""What of a session's cache moves to another stage: the parts of its layers, each a memory of rows or of a state.

A part is counted in units, which are positions, pools of tokens, or one state; and in lanes side by side, which are heads, or the
numbers of a state. Ranks of a group have different lanes (`model/cache_shares.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.pool_cache import PoolCache
from potluck.engine.caches.session_cache import SessionCache
from potluck.engine.caches.state_cache import RowsAndState
from potluck.model.cache_shares import CacheShares, Lanes
from potluck.model.caches import (
    CacheSpec,
    FullCache,
    PooledCache,
    RecurrentCache,
    RowsAndStateCache,
    WindowCache,
)
from potluck.model.head_cuts import Ranges

PIECE = 1 << 20  # bytes of rows that go at once: a millisecond on the thread that computes

PartKey: TypeAlias = tuple[int, int]  # the model's number of a layer, and that of the part in it


class Run(NamedTuple):
    """Lanes that are neighbours both in the whole layer and here."""

    whole: int  # the number of the first one in the whole layer
    here: int  # where it is in this memory
    size: int  # how many

    def part(self, first: int, stop: int) -> "Run":
        """Those with these numbers, as far as they are among them."""
        begin, end = max(first, self.whole), min(stop, self.whole + self.size)
        return Run(begin, self.here + begin - self.whole, max(0, end - begin))


class MovedPart(ABC):
    """One memory of a layer's cache, (2, heads, rows, numbers) or (1, 1, rows, numbers).

    Attributes:
        runs: its lanes.
        axis: of the memory, on which its lanes are.
        is_streamed: whether units stay as they are once their tokens are computed. Else they go with the last token.
    """

    axis: ClassVar[int] = 1
    is_streamed: ClassVar[bool] = False

    def __init__(self, cache: LayerCache, lanes: Ranges) -> None:
        self.cache = cache
        self.runs = tuple(_runs(lanes))

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

    def chosen(self, lanes: Ranges) -> Iterator[Run]:
        """Those of these lanes that are here, in runs that are sent one beside the other."""
        for run in self.runs:
            for first, stop in lanes:
                if (part := run.part(first, stop)).size:
                    yield part

    def at_once(self, run: Run) -> int:
        """How many units of these lanes make a piece."""
        memory = self.memory
        one = memory[:, : run.size, :1].nbytes
        return max(1, PIECE // max(1, one))

    def read(self, run: Run, first: int, stop: int) -> Tensor:
        """Some units of some lanes."""
        return self.place(self.memory, run, first, stop, self.begin)

    def place(self, memory: Tensor, run: Run, first: int, stop: int, begin: int) -> Tensor:
        """Some units of some lanes in memory that is laid out as this one, and begins with the unit `begin`."""
        return memory[:, run.here : run.here + run.size, first - begin : stop - begin]

    @abstractmethod
    def rows_apart(self, end: int) -> int:
        """Rows of memory in which they wait, if the session has tokens already: what these left would be replaced."""

    def has_enough(self, first: int, end: int) -> bool:
        """Whether the units from `first` on are all that is needed behind the token before `end`."""
        return True

    @abstractmethod
    def hold(self, begin: int, first: int, end: int) -> None:
        """Have the cache hold the units from `first` on, up to the token before `end`; its memory has those from `begin` on."""


class RowsPart(MovedPart):
    """Rows of all positions, the first of which may be shared with other sessions."""

    is_streamed = True

    def read(self, run: Run, first: int, stop: int) -> Tensor:
        both, shared, begin = self.cache.both, self.cache.shared, self.begin
        own = self.place(both, run, max(first, begin), max(stop, begin), begin)
        if shared is None or first >= begin:
            return own
        return torch.cat([self.place(shared, run, first, min(stop, begin), 0), own], 2)

    def rows_apart(self, end: int) -> int:
        return 0

    def hold(self, begin: int, first: int, end: int) -> None:
        pass  # from its first row on, as before


class WindowPart(MovedPart):
    """Rows of the last positions."""

    def __init__(self, cache: LayerCache, spec: WindowCache, lanes: Ranges) -> None:
        super().__init__(cache, lanes)
        self._spec = spec

    def rows_apart(self, end: int) -> int:
        return self._spec.rows(end)

    def has_enough(self, first: int, end: int) -> bool:
        return self._spec.trim((first,), end) == end

    def hold(self, begin: int, first: int, end: int) -> None:
        self.cache.held = (begin,)
        if first > begin:  # ranks that send it are not always equally far
            self.cache.advance((first,), end)


class StatePart(MovedPart):
    """A state, without its checkpoints: one unit."""

    axis = 3

    def __init__(self, cache: LayerCache, spec: RecurrentCache, lanes: Ranges) -> None:
        super().__init__(cache, lanes)
        self._spec = spec

    @property
    def begin(self) -> int:
        return 0

    def units(self, tokens: int) -> int:
        return 1

    def chosen(self, lanes: Ranges) -> Iterator[Run]:
        at_once = max(1, PIECE // self.memory.itemsize)
        for run in super().chosen(lanes):
            for first in range(run.whole, run.whole + run.size, at_once):
                yield run.part(first, first + at_once)

    def place(self, memory: Tensor, run: Run, first: int, stop: int, begin: int) -> Tensor:
        return memory[:, :, first:stop, run.here : run.here + run.size]

    def rows_apart(self, end: int) -> int:
        return 1

    def hold(self, begin: int, first: int, end: int) -> None:
        nothing = (0,) * len(self.cache.held)
        self.cache.held = nothing
        # Where an answer begins, there is a checkpoint.
        self.cache.advance(self._spec.advance(nothing, end, 2), end)


class BesideRowsPart(StatePart):
    """A state beside rows of all positions."""

    def __init__(self, whole: RowsAndState, spec: RecurrentCache, lanes: Ranges) -> None:
        super().__init__(whole.state, spec, lanes)
        self._whole = whole

    def hold(self, begin: int, first: int, end: int) -> None:
        super().hold(begin, first, end)
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

    def hold(self, begin: int, first: int, end: int) -> None:
        pass  # as many as the tokens make


def parts_of(spec: CacheSpec, cache: LayerCache, lanes: Lanes) -> tuple[MovedPart, ...]:
    """The parts of a layer's cache, which has these lanes of each."""
    if isinstance(spec, PooledCache):
        assert isinstance(cache, PoolCache)
        return PooledTokensPart(cache, spec, lanes[0]), PoolsPart(cache, lanes[1])
    if isinstance(spec, RowsAndStateCache):
        assert isinstance(cache, RowsAndState)
        return RowsPart(cache, lanes[0]), BesideRowsPart(cache, spec.state, lanes[1])
    if isinstance(spec, RecurrentCache):
        return (StatePart(cache, spec, lanes[0]),)
    is_window = isinstance(spec, WindowCache)
    return (WindowPart(cache, spec, lanes[0]) if is_window else RowsPart(cache, lanes[0]),)


def moved_parts(
    cache: SessionCache, specs: Sequence[CacheSpec], numbers: Sequence[int], shares: CacheShares
) -> Iterator[tuple[PartKey, MovedPart]]:
    """All parts of a cache, without the layers that cache nothing; `numbers` are those of the layers.

    Layers that have one cache have the same parts.
    """
    made: dict[LayerCache, tuple[MovedPart, ...]] = {}
    for number, spec, layer in zip(numbers, specs, cache.layers, strict=True):
        if spec.row.nbytes:
            if layer not in made:
                made[layer] = parts_of(spec, layer, shares.held(number))
            for index, part in enumerate(made[layer]):
                yield (number, index), part


def _runs(lanes: Ranges) -> Iterator[Run]:
    """The runs of lanes that are in memory in this order."""
    here = 0
    for first, stop in lanes:
        yield Run(first, here, stop - first)
        here += stop - first


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
