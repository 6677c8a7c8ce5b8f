"""The cache of one layer: its memory, as its `CacheSpec` says.

All memory is rows. In most layers a row is what is cached of one token, and the rows are those of
consecutive positions. A recurrent layer has one row for its state and one for each checkpoint.
"""

from math import prod
from mmap import PAGESIZE

import torch
from torch import Tensor

from potluck.engine.kernels.attending.cache import cached_width, dequantise_heads, quantise_heads
from potluck.engine.pages import map_pages
from potluck.model.cache_rows import KeysAndValues
from potluck.model.caches import Held

GRANULE = 256  # tokens; a short chat fits into the first, and few sizes leave little fragmentation


class LayerCache:
    """Keys and values of one layer: (2, Hkv, rows, K). The first row is that of position `first`.

    Rows of positions that are not cached hold anything. Numbers may be kept in fewer bits than are
    computed with; `read` is told which dtype is wanted. In int8 each key and each value has a scale behind
    it: (2, Hkv, rows, K + 4).

    Attributes:
        both: the memory.
        held: see `CacheSpec`.
        shared: the rows of the positions before `first`, which several sessions have in common and none
            writes; None: there are none. Only generated kernels read them.
    """

    __slots__ = ("_keys", "_pairs", "_values", "both", "held", "shared")

    shared: Tensor | None

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device):
        width = cached_width(head_dim, dtype)
        self.held: Held = (0,)
        self.shared = None
        self._set(torch.empty((2, kv_heads, 0, width), dtype=dtype, device=device))

    def write(self, position: int, kv: Tensor) -> None:
        """Store (T, 2·Hkv, K), a token's keys before its values, from `position` on."""
        if self.both.dtype == torch.int8:
            kv = quantise_heads(kv)
        T, _, K = kv.shape
        target = self._pairs.narrow(2, position - self.first, T)  # (2, Hkv, T, K)
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

    def read_all(self, start: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The same, also of rows that are shared with other sessions."""
        here = max(0, self.first - start)
        if self.shared is None or not here:
            return self.read(start, length, dtype)
        shared = self.shared[:, None, :, start : start + min(here, length)]
        keys, values = dequantise_heads(shared) if shared.dtype == torch.int8 else shared
        if here >= length:
            return keys.to(dtype), values.to(dtype)
        mine = self.read(start + here, length - here, dtype)
        return torch.cat([keys.to(dtype), mine[0]], 2), torch.cat([values.to(dtype), mine[1]], 2)

    @property
    def nbytes(self) -> int:
        """Bytes of its own memory."""
        return sum(part.both.nbytes for part in self.parts)

    @property
    def parts(self) -> "tuple[LayerCache, ...]":
        """The memories that it is made of."""
        return (self,)

    @property
    def first(self) -> int:
        """The position of the first row."""
        return self.held[0]

    @property
    def rows(self) -> int:
        """How many rows there is memory for."""
        return self.both.shape[2]

    def resize(self, rows: int, length: int) -> None:
        """Make memory for so many rows. The first `length` keep their values."""
        two, heads, _, K = self.both.shape
        grown = empty_rows(self.both, (two, heads, rows, K))
        if grown.device.type == "cpu":
            # The system takes a page from free memory when it is first written. Written now, no
            # other program can get it. That takes 0.4 s for each gigabyte, else spent by later
            # tokens.
            grown.view(torch.uint8).view(-1)[::PAGESIZE].zero_()
        grown[:, :, :length].copy_(self.both[:, :, :length])
        self._set(grown)

    def advance(self, held: Held, end: int) -> None:
        """Hold what `CacheSpec.advance` wants before a step from `end` on. Allocates nothing.

        The rows from the first of these positions to `end` move to the front.
        """
        first = held[0]
        step = first - self.first
        for row in range(0, end - first, step):  # source and target never overlap
            count = min(step, end - first - row)
            self.both.narrow(2, row, count).copy_(self.both.narrow(2, row + step, count))
        self.held = held

    def trim(self, position: int) -> None:
        """Forget what is held from `position` on, one that `CacheSpec.trim` has answered."""
        if self.shared is not None and position < self.first:
            self.take_shared(self.shared[:, :, :position])
        else:
            self.held = tuple(at if at <= position else 0 for at in self.held)

    def copy(self, other: "LayerCache", position: int) -> None:
        """Hold what a cache of the same kind holds of the tokens before `position`.

        Of its own rows, those are copied that are not among the shared ones here.
        """
        if self.shared is None:
            self.held = other.held
        rows, skipped = position - self.first, self.first - other.first
        self.both[:, :, :rows].copy_(other.both[:, :, skipped : skipped + rows])

    def share(self, tokens: int, length: int) -> Tensor:
        """Move the rows of the first tokens to memory that other sessions may share; return it.

        Args:
            tokens: how many.
            length: how many tokens are cached.
        """
        two, heads, rows, K = self.both.shape
        shared = empty_rows(self.both, (two, heads, tokens, K))
        shared.copy_(self.both[:, :, :tokens])
        self._set(self.both[:, :, tokens:])
        self.resize(rows - tokens, length - tokens)  # gives the memory of the others back
        self.take_shared(shared)
        return shared

    def take_shared(self, shared: Tensor) -> None:
        """Have these rows before the own ones."""
        tokens = shared.shape[2]
        self.shared, self.held = shared if tokens else None, (tokens,)

    def clear(self) -> None:
        """Give the memory back."""
        self._set(self.both[:, :, :0].clone())
        self.trim(0)
        self.shared = None

    def _set(self, both: Tensor) -> None:
        self.both = self._pairs = both  # the memory itself
        self._keys, self._values = both[:1], both[1:]  # (1, Hkv, rows, K)


class IndexedCache(LayerCache):
    """Keys and values of one layer, and what an indexer caches in a head of its own: (2, Hkv + 1, rows, K).

    `half` 0 is where the other heads have keys, and 1 where they have values.
    """

    __slots__ = ("_size",)

    def __init__(self, row: KeysAndValues, dtype: torch.dtype, device: torch.device):
        self._size = row.index
        super().__init__(row.heads + 1, row.size, dtype, device)

    def write_index(self, half: int, position: int, numbers: Tensor, step: int = 1) -> None:
        """Store (n, size) from a position on, at each `step`-th one."""
        is_int8 = self.both.dtype == torch.int8
        width = self.both.shape[3] - (cached_width(0, self.both.dtype) if is_int8 else 0)
        padded = torch.nn.functional.pad(numbers, (0, width - self._size))
        padded = quantise_heads(padded) if is_int8 else padded
        row = position - self.first
        self.both[half, -1, row : row + step * len(padded) : step].copy_(padded)

    def read_index(self, half: int, start: int, stop: int, step: int = 1) -> Tensor:
        """Those of each `step`-th position from `start` on before `stop`, (n, size), f32."""
        parts: list[Tensor] = []
        first = self.first
        if self.shared is not None and start < first:
            parts.append(self.shared[half, -1, start : min(stop, first) : step])
            start += len(parts[0]) * step
        if start < stop:
            parts.append(self.both[half, -1, start - first : stop - first : step])
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        if rows.dtype == torch.int8:
            rows = dequantise_heads(rows)
        return rows[:, : self._size].float().contiguous()

    def gather(self, positions: Tensor) -> Tensor:
        """Keys and values of these ascending positions, as a cache of them alone: (2, Hkv, n, K)."""
        first = self.first
        own = self._pairs.index_select(2, positions[positions >= first] - first)
        if self.shared is None:
            return own
        shared = self.shared[:, :-1].index_select(2, positions[positions < first])
        return torch.cat([shared, own], 2)

    def gather_heads(self, positions: Tensor) -> Tensor:
        """Keys and values of ascending positions of each head, (Hkv, n): as a cache of them alone, (2, Hkv, n, K)."""
        first, width = self.first, self._pairs.shape[3]
        places = positions[None, :, :, None].expand(2, -1, -1, width)
        if self.shared is None:
            return self._pairs.gather(2, places)
        shared = self.shared[:, :-1]
        own = self._pairs.gather(2, (places - first).clamp(min=0))
        return torch.where(places < first, shared.gather(2, places.clamp(max=first - 1)), own)

    def _set(self, both: Tensor) -> None:
        self.both = both
        self._pairs = both[:, :-1]
        self._keys, self._values = self._pairs[:1], self._pairs[1:]


def empty_rows(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Memory of this shape for a cache. On a CPU it is mapped: glibc would keep it when freed."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    return map_pages(prod(shape) * like.itemsize).view(like.dtype).view(shape)
