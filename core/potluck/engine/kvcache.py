"""The cache of one session: the memory of each layer, as its `CacheSpec` says."""

from collections.abc import Sequence
from math import prod
from mmap import PAGESIZE

import torch
from torch import Tensor

from potluck.engine.kernels.cache import cached_width, dequantise_heads, quantise_heads
from potluck.engine.pages import map_pages
from potluck.model.caches import CacheSpec

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


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory of this shape for a cache. On a CPU it is mapped: glibc would keep it when freed."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return map_pages(prod(shape) * like.itemsize).view(like.dtype).view(shape)
