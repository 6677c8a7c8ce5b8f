"""The KV caches of a stage's sessions, within a budget.

A session's cache grows geometrically up to the context, layer by layer, so that a token costs no copy
of the world and a growing session never holds two of its caches at once. When the budget is spent, or
the device has less left than it had, the session that was used least recently loses its cache; it stays
known, with nothing cached, so that its next step is answered `need_replay` from position 0. What would
not fit even so is refused before anything is allocated: a system that promises more memory than it has
ends the process that believed it.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import prod
from mmap import PAGESIZE

import torch
from torch import Tensor

from potluck.engine.kernels.cache import cached_width, dequantise_heads, quantise_heads
from potluck.engine.memory import release
from potluck.engine.pages import map_pages
from potluck.errors import OutOfMemoryError, format_bytes
from potluck.ids import SessionId

GRANULE = 256  # tokens; a short chat fits the first one, and few sizes mean little fragmentation


class LayerCache:
    """Keys and values of one layer: (2, Hkv, capacity, K), those past the length are garbage.

    They may be kept in fewer bits than are computed with; `read` says in which they are wanted. Those
    of int8 have a scale behind each, (2, Hkv, capacity, K + 4).
    """

    __slots__ = ("_both", "_keys", "_values")

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device):
        width = cached_width(head_dim, dtype)
        self._set(torch.empty((2, kv_heads, 0, width), dtype=dtype, device=device))

    def write(self, position: int, kv: Tensor) -> None:
        """Store (T, 2·Hkv, K), a token's keys before its values, from `position` on."""
        if self._both.dtype == torch.int8:
            kv = quantise_heads(kv)
        T, _, K = kv.shape
        target = self._both.narrow(2, position, T)  # (2, Hkv, T, K)
        if T == 1:  # the order of axes is then the same, and a permutation takes 1 µs
            target.copy_(kv.view(2, -1, 1, K))
        else:
            target.copy_(kv.view(T, 2, -1, K).permute(1, 2, 0, 3))

    def read(self, start: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values, (1, Hkv, length, K) each; views where they are of this dtype."""
        keys, values = self._keys.narrow(2, start, length), self._values.narrow(2, start, length)
        if keys.dtype == torch.int8:
            keys, values = dequantise_heads(keys), dequantise_heads(values)
        return keys.to(dtype), values.to(dtype)

    @property
    def both(self) -> Tensor:
        """The memory itself."""
        return self._both

    def resize(self, capacity: int, length: int) -> None:
        """Make room for `capacity` tokens; the first `length` keep their values."""
        two, heads, _, K = self._both.shape
        grown = _empty(self._both, (two, heads, capacity, K))
        if grown.device.type == "cpu":
            # A page is not ours before it was written, and who asks what is free must not be told
            # that it still is. 0.4 s for each gigabyte, which writing tokens would take later.
            grown.view(torch.uint8).view(-1)[::PAGESIZE].zero_()
        grown[:, :, :length].copy_(self._both[:, :, :length])
        self._set(grown)

    def clear(self) -> None:
        self._set(self._both[:, :, :0].clone())

    def _set(self, both: Tensor) -> None:
        self._both = both
        self._keys, self._values = both[:1], both[1:]  # (1, Hkv, capacity, K)


class SessionCache:
    """One session's layers. `length` tokens are cached: that is the session's position here.

    `place` is another object whenever the memory is elsewhere, and no other cache's.
    """

    __slots__ = ("capacity", "layers", "length", "place")

    def __init__(self, layers: list[LayerCache]) -> None:
        self.layers = layers
        self.length = self.capacity = 0  # tokens
        self.place = object()

    @property
    def nbytes(self) -> int:
        """What the layers have, also those that were larger when another could not grow."""
        return sum(layer.both.nbytes for layer in self.layers)

    def resize(self, capacity: int) -> None:
        """Grow every layer; after a failure some are larger, none has lost a token."""
        self.place = object()
        for layer in self.layers:
            layer.resize(capacity, self.length)
        self.capacity = capacity

    def evict(self) -> None:
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
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        context: int,
        budget: int,
        budget_now: Callable[[int], int] | None = None,
    ) -> None:
        """Make an empty pool.

        Args:
            layers: that each session has.
            kv_heads: of a layer.
            head_dim: values of a head.
            dtype: of what is kept.
            device: where it is kept.
            context: tokens of one session at most.
            budget: bytes of all together.
            budget_now: the same as of now, of bytes that the caches have already; asked whenever
                a session grows. None: it stays what it was.
        """
        self._layers, self._kv_heads, self._head_dim = layers, kv_heads, head_dim
        self._dtype, self._device = dtype, device
        self._context, self._budget, self._budget_now = context, budget, budget_now
        width = cached_width(head_dim, dtype)
        self._bytes_per_token = 2 * layers * kv_heads * width * dtype.itemsize
        self._caches: OrderedDict[SessionId, SessionCache] = OrderedDict()
        self._nbytes = 0  # of all caches

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def tokens(self) -> int:
        """What one session can hold when it has the budget for itself."""
        if not self._bytes_per_token:
            return self._context
        return min(self._context, self._budget // self._bytes_per_token)

    def open(self, session: SessionId) -> SessionCache:
        """An empty cache; one of the same name is forgotten."""
        self.close(session)
        layers = [
            LayerCache(self._kv_heads, self._head_dim, self._dtype, self._device)
            for _ in range(self._layers)
        ]
        cache = self._caches[session] = SessionCache(layers)
        return cache

    def close(self, session: SessionId) -> None:
        cache = self._caches.pop(session, None)
        if cache is not None:
            self._nbytes -= cache.nbytes

    def reserve(self, session: SessionId, tokens: int) -> list[SessionId]:
        """Make the session the most recently used one and let it hold so many tokens.

        Returns:
            The sessions whose caches had to go.

        Raises:
            OutOfMemoryError: there is no room even for this session alone; nothing was changed.
        """
        self._caches.move_to_end(session)
        cache = self._caches[session]
        if tokens <= cache.capacity:
            return []
        capacity, room = self._choose_capacity(cache, tokens)
        before = cache.nbytes
        evicted = self._evict(capacity * self._bytes_per_token - before - room)
        try:
            cache.resize(capacity)
        finally:
            self._nbytes += cache.nbytes - before
        return evicted

    def _choose_capacity(self, cache: SessionCache, tokens: int) -> tuple[int, int]:
        """What the cache is to grow to, and the bytes that it can take without an eviction."""
        most, size = self.tokens, self._bytes_per_token
        if not size:
            return most, 0
        if tokens > most:
            raise _beyond_budget(tokens, tokens * size, self._budget)
        wanted = min(_round_up(tokens), most)
        others = self._nbytes - cache.nbytes  # would be free if they had to go
        room = self._room(wanted * size - cache.nbytes)
        at_most = (cache.nbytes + room + others) // size
        if tokens > at_most:
            raise _beyond_memory(tokens, tokens * size - cache.nbytes, max(0, room + others))
        # Twice as much as before where nobody has to go for it; else what is needed.
        twice = min(2 * cache.capacity, most, (cache.nbytes + room) // size)
        return max(min(wanted, at_most), twice), room

    def _room(self, wanted: int) -> int:
        """Bytes that no cache has; fewer than none when others took what was ours."""
        room = self._budget - self._nbytes
        if self._budget_now is None:
            return room
        now = self._budget_now(self._nbytes) - self._nbytes
        if now < min(wanted, room):
            release(self._device)  # what was freed here, and is kept for later
            now = self._budget_now(self._nbytes) - self._nbytes
        return min(room, now)

    def _evict(self, excess: int) -> list[SessionId]:
        """Free so many bytes, which all but the latest have; that one stays, since it is the one that grows."""
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
    """Memory for a cache; of a CPU some that goes back with it, where glibc would keep it for later."""
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
