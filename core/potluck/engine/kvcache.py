"""The KV caches of a stage's sessions, within a budget.

A layer's `CacheSpec` says what the layer holds. A session's cache grows geometrically up to the
context, layer by layer: a token rarely costs a copy, and a growing session never holds all of its
cache twice. When the budget is spent, or the device has less free memory than before, the least
recently used session loses its cache. That session stays known, with nothing cached, so its next
step is answered with `need_replay` from position 0. A step that does not fit even then is refused
before anything is allocated: the operating system ends a process that uses more memory than there
is.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod
from mmap import PAGESIZE

import torch
from torch import Tensor

from potluck.engine.kernels.cache import cached_width, dequantise_heads, quantise_heads
from potluck.engine.memory import release
from potluck.engine.pages import map_pages
from potluck.errors import OutOfMemoryError, format_bytes
from potluck.ids import SessionId
from potluck.model.caches import CacheSpec, session_bytes

GRANULE = 256  # tokens; a short chat fits into the first, and few sizes leave little fragmentation


class LayerCache:
    """Keys and values of one layer: (2, Hkv, rows, K). The first row is that of position `first`.

    Rows of positions that are not cached hold anything. Numbers may be kept in fewer bits than are
    computed with; `read` is told which dtype is wanted. In int8 each key and each value has a scale behind
    it: (2, Hkv, rows, K + 4).
    """

    __slots__ = ("_both", "_keys", "_values", "first")

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device):
        width = cached_width(head_dim, dtype)
        self.first = 0
        self._set(torch.empty((2, kv_heads, 0, width), dtype=dtype, device=device))

    def write(self, position: int, kv: Tensor) -> None:
        """Store (T, 2·Hkv, K), a token's keys before its values, from `position` on."""
        if self._both.dtype == torch.int8:
            kv = quantise_heads(kv)
        T, _, K = kv.shape
        target = self._both.narrow(2, position - self.first, T)  # (2, Hkv, T, K)
        if T == 1:  # the axes are in the same order then, and a permutation takes 1 µs
            target.copy_(kv.view(2, -1, 1, K))
        else:
            target.copy_(kv.view(T, 2, -1, K).permute(1, 2, 0, 3))

    def read(self, start: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values from position `start` on, (1, Hkv, length, K) each; views, if of this dtype."""
        row = start - self.first
        keys, values = self._keys.narrow(2, row, length), self._values.narrow(2, row, length)
        if keys.dtype == torch.int8:
            keys, values = dequantise_heads(keys), dequantise_heads(values)
        return keys.to(dtype), values.to(dtype)

    @property
    def both(self) -> Tensor:
        """The memory itself."""
        return self._both

    @property
    def rows(self) -> int:
        """Positions that there is memory for."""
        return self._both.shape[2]

    def resize(self, rows: int, length: int) -> None:
        """Make memory for so many rows. The first `length` keep their values."""
        two, heads, _, K = self._both.shape
        grown = _empty(self._both, (two, heads, rows, K))
        if grown.device.type == "cpu":
            # The system takes a page from free memory when it is first written. Written now, no
            # other program can get it. That takes 0.4 s for each gigabyte, else spent by later
            # tokens.
            grown.view(torch.uint8).view(-1)[::PAGESIZE].zero_()
        grown[:, :, :length].copy_(self._both[:, :, :length])
        self._set(grown)

    def advance(self, first: int, end: int) -> None:
        """Move the rows of the positions from `first` to `end` to the front. Allocates nothing."""
        step = first - self.first
        for row in range(0, end - first, step):  # source and target never overlap
            count = min(step, end - first - row)
            self._both.narrow(2, row, count).copy_(self._both.narrow(2, row + step, count))
        self.first = first

    def clear(self) -> None:
        """Give the memory back."""
        self._set(self._both[:, :, :0].clone())
        self.first = 0

    def _set(self, both: Tensor) -> None:
        self._both = both
        self._keys, self._values = both[:1], both[1:]  # (1, Hkv, rows, K)


class SessionCache:
    """One session's layers. `length` tokens are cached: that is the session's position here.

    `place` becomes another object whenever rows move. No other cache has the same one.
    """

    __slots__ = ("_kinds", "capacity", "layers", "length", "place")

    def __init__(self, specs: Sequence[CacheSpec], layers: Sequence[LayerCache]) -> None:
        """Make an empty cache with one layer for each specification."""
        self.layers = list(layers)
        self.length = self.capacity = 0  # tokens
        self.place = object()
        # Layers of one kind hold the same positions.
        self._kinds = [
            (kind, [layer for spec, layer in zip(specs, layers, strict=True) if spec == kind])
            for kind in dict.fromkeys(specs)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers, including those that grew before another one failed to."""
        return sum(layer.both.nbytes for layer in self.layers)

    def resize(self, capacity: int) -> None:
        """Make room for so many tokens. If that fails, some layers are larger; no token is lost."""
        self.place = object()
        for spec, layers in self._kinds:
            rows = spec.rows(capacity)
            for layer in layers:
                if layer.rows != rows:
                    layer.resize(rows, self.length)
        self.capacity = capacity

    def make_room(self, position: int, tokens: int) -> None:
        """Move the rows of windows, where a step of so many tokens from `position` on does not fit.

        The tokens must be within the capacity. What is cached of the positions that stay is unchanged, so
        a step that fails later may be sent again.
        """
        for spec, layers in self._kinds:
            first = spec.advance(layers[0].first, position, tokens)
            if first != layers[0].first:
                self.place = object()
                for layer in layers:
                    layer.advance(first, position)

    def trim(self, position: int) -> None:
        """Forget the tokens from `position` on, and more where a layer cannot go on from there.

        `length` is then the nearest position before it from which all layers can.
        """
        while (kept := self._restart(position)) < position:
            position = kept
        self.length = position
        if not position:
            self.place = object()
            for layer in self.layers:
                layer.first = 0

    def _restart(self, position: int) -> int:
        """The earliest of the positions, at or before `position`, where the layers can go on."""
        firsts = ((spec, layers[0].first) for spec, layers in self._kinds)
        return min((spec.trim(first, position) for spec, first in firsts), default=position)

    def evict(self) -> None:
        """Give all memory back."""
        self.place = object()
        for layer in self.layers:
            layer.clear()
        self.length = self.capacity = 0


class CachePool:
    """All sessions' caches of a stage, least recently used first.

    One thread changes it; another may ask for `nbytes` at any time.
    """

    def __init__(
        self,
        specs: Sequence[CacheSpec],
        *,
        dtype: torch.dtype,
        device: torch.device,
        context: int,
        budget: int,
        budget_now: Callable[[int], int] | None = None,
    ) -> None:
        """Make an empty pool.

        Args:
            specs: what each layer of a session caches.
            dtype: of the cached keys and values.
            device: the device of the caches.
            context: the most tokens of one session.
            budget: bytes of all caches together.
            budget_now: takes the bytes that the caches have already, and returns the budget as of now.
                It is asked whenever a session grows. None: the budget does not change.
        """
        self._specs, self._dtype, self._device = tuple(specs), dtype, device
        self._context, self._budget, self._budget_now = context, budget, budget_now
        self._caches: OrderedDict[SessionId, SessionCache] = OrderedDict()
        self._nbytes = 0  # of all caches

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return self._nbytes

    @property
    def tokens(self) -> int:
        """Tokens that one session can hold when it has the budget for itself."""
        return self._tokens_in(self._budget)

    def open(self, session: SessionId) -> SessionCache:
        """Make an empty cache. One of the same name is forgotten."""
        self.close(session)
        layers = [
            LayerCache(spec.row.heads, spec.row.size, self._dtype, self._device)
            for spec in self._specs
        ]
        cache = self._caches[session] = SessionCache(self._specs, layers)
        return cache

    def close(self, session: SessionId) -> None:
        """Forget a session's cache. One that is not known is forgotten already."""
        cache = self._caches.pop(session, None)
        if cache is not None:
            self._nbytes -= cache.nbytes

    def reserve(self, session: SessionId, tokens: int) -> list[SessionId]:
        """Make the session the most recently used one and let it hold so many tokens.

        Returns:
            The sessions that lost their caches for it.

        Raises:
            OutOfMemoryError: there is no room even for this session alone; nothing was changed.
        """
        self._caches.move_to_end(session)
        cache = self._caches[session]
        if tokens <= cache.capacity:
            return []
        capacity, room = self._choose_capacity(cache, tokens)
        before = cache.nbytes
        evicted = self._evict(self._bytes_of(capacity) - before - room)
        try:
            cache.resize(capacity)
        finally:
            self._nbytes += cache.nbytes - before
        return evicted

    def _bytes_of(self, tokens: int) -> int:
        """Bytes of a session with room for so many tokens."""
        return session_bytes(self._specs, tokens)

    def _tokens_in(self, nbytes: int) -> int:
        """Tokens of the longest session that so many bytes hold, at most the context."""
        return bisect_right(range(self._context + 1), nbytes, key=self._bytes_of) - 1

    def _choose_capacity(self, cache: SessionCache, tokens: int) -> tuple[int, int]:
        """The tokens to grow the cache to, and the bytes that it can take without an eviction."""
        most = self.tokens
        if not self._specs:
            return most, 0
        if tokens > most:
            raise _beyond_budget(tokens, self._bytes_of(tokens), self._budget)
        wanted = min(_round_up(tokens), most)
        others = self._nbytes - cache.nbytes  # free once all others are evicted
        room = self._room(self._bytes_of(wanted) - cache.nbytes)
        at_most = self._tokens_in(cache.nbytes + room + others)
        if tokens > at_most:
            needed = self._bytes_of(tokens) - cache.nbytes
            raise _beyond_memory(tokens, needed, max(0, room + others))
        # Twice as much as before if that evicts no session, else only what is needed.
        twice = min(2 * cache.capacity, most, self._tokens_in(cache.nbytes + room))
        return max(min(wanted, at_most), twice), room

    def _room(self, wanted: int) -> int:
        """Bytes that no cache uses. Negative if other programs took memory meant for caches."""
        room = self._budget - self._nbytes
        if self._budget_now is None:
            return room
        now = self._budget_now(self._nbytes) - self._nbytes
        if now < min(wanted, room):
            release(self._device)  # memory that this process freed but still keeps for later
            now = self._budget_now(self._nbytes) - self._nbytes
        return min(room, now)

    def _evict(self, excess: int) -> list[SessionId]:
        """Evict the least recently used until so many bytes are free; the one that grows is the last."""
        evicted: list[SessionId] = []
        for name, other in self._caches.items():
            if excess <= 0:
                break
            if other.nbytes:  # also what is left of a growth that failed
                excess -= other.nbytes
                self._nbytes -= other.nbytes
                other.evict()
                evicted.append(name)
        return evicted


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory of this shape for a cache. On a CPU it is mapped: glibc would keep it when freed."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return map_pages(prod(shape) * like.itemsize).view(like.dtype).view(shape)


def _round_up(tokens: int) -> int:
    return -(-tokens // GRANULE) * GRANULE


def _beyond_budget(tokens: int, needed: int, budget: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"A conversation of {tokens} tokens needs {format_bytes(needed)} of cache here, and"
        f" {format_bytes(budget)} are set aside for it. Shorten the conversation, choose a smaller"
        " context, or let this computer lend more memory.",
        needed=needed,
        available=budget,
    )


def _beyond_memory(tokens: int, needed: int, available: int) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"A conversation of {tokens} tokens needs {format_bytes(needed)} more of cache here, and"
        f" {format_bytes(available)} are free for it now, less than when the model was loaded. Close"
        " other programs on this computer, let it lend more, or shorten the conversation.",
        needed=needed,
        available=available,
    )
