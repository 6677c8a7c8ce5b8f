"""The KV caches of a stage's sessions, within a budget.

A session's cache grows geometrically up to the context, layer by layer, so that a token costs no copy
of the world and a growing session never holds two of its caches at once. When the budget is spent,
the session that was used least recently loses its cache; it stays known, with nothing cached, so that
its next step is answered `need_replay` from position 0.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from potluck.engine.kernels.cache import cached_width, dequantise_heads, quantise_heads
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
        grown = self._both.new_empty((two, heads, capacity, K))
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

    __slots__ = ("_bytes_per_token", "capacity", "layers", "length", "place")

    def __init__(self, layers: list[LayerCache], bytes_per_token: int) -> None:
        self.layers = layers
        self.length = self.capacity = 0  # tokens
        self.place = object()
        self._bytes_per_token = bytes_per_token

    @property
    def nbytes(self) -> int:
        return self.capacity * self._bytes_per_token

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
    """All sessions' caches of a stage, least recently used first."""

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
    ) -> None:
        """Tokens of one session at most: `context`; bytes of all together: `budget`."""
        self._layers, self._kv_heads, self._head_dim = layers, kv_heads, head_dim
        self._dtype, self._device = dtype, device
        self._context, self._budget = context, budget
        width = cached_width(head_dim, dtype)
        self._bytes_per_token = 2 * layers * kv_heads * width * dtype.itemsize
        self._caches: OrderedDict[SessionId, SessionCache] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches.values())

    @property
    def tokens(self) -> int:
        """What one session can hold when it has the budget for itself."""
        if not self._bytes_per_token:
            return self._context
        return min(self._context, self._budget // self._bytes_per_token)

    def open(self, session: SessionId) -> SessionCache:
        """An empty cache; one of the same name is forgotten."""
        layers = [
            LayerCache(self._kv_heads, self._head_dim, self._dtype, self._device)
            for _ in range(self._layers)
        ]
        cache = self._caches[session] = SessionCache(layers, self._bytes_per_token)
        self._caches.move_to_end(session)
        return cache

    def close(self, session: SessionId) -> None:
        self._caches.pop(session, None)

    def reserve(self, session: SessionId, tokens: int) -> list[SessionId]:
        """Make the session the most recently used one and let it hold so many tokens.

        Returns:
            The sessions whose caches had to go.

        Raises:
            OutOfMemoryError: the budget is too small even for this session alone.
        """
        self._caches.move_to_end(session)
        cache = self._caches[session]
        if tokens <= cache.capacity:
            return []
        capacity, evicted = self._make_room(cache, tokens)
        cache.resize(capacity)
        return evicted

    def _make_room(self, cache: SessionCache, tokens: int) -> tuple[int, list[SessionId]]:
        """Choose the new capacity, and evict until it fits the budget."""
        least = min(_round_up(tokens), self._context)
        most = self.tokens
        if least > most:
            raise OutOfMemoryError(
                f"A conversation of {tokens} tokens needs {format_bytes(least * self._bytes_per_token)}"
                f" of cache here, and {format_bytes(self._budget)} are set aside for it. Shorten the"
                " conversation, choose a smaller context, or let this computer lend more memory.",
                needed=least * self._bytes_per_token,
                available=self._budget,
            )
        # Twice as much as before, if that is to be had; else what is needed.
        capacity = min(max(least, 2 * cache.capacity), self._context, most)
        excess = self.nbytes - cache.nbytes + capacity * self._bytes_per_token - self._budget
        evicted: list[SessionId] = []
        for name, other in self._caches.items():
            if excess <= 0:
                break
            if other is not cache and other.capacity:
                excess -= other.nbytes
                other.evict()
                evicted.append(name)
        return capacity, evicted


def _round_up(tokens: int) -> int:
    return -(-tokens // GRANULE) * GRANULE
