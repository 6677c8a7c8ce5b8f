"""The cache of a layer of latent attention."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.kernels.attending.cache import cached_width, dequantise_heads, quantise_heads
from potluck.model.cache_rows import Latent


class LatentCache(LayerCache):
    """Latent rows of one layer: (1, 1, rows, rank + rope), and behind these the key of an indexer, if there is one.

    In int8 each of the parts has a scale behind it: (1, 1, rows, rank + 4 + rope + 4).
    """

    __slots__ = ("_sizes",)

    def __init__(self, row: Latent, dtype: torch.dtype, device: torch.device):
        self.held = (0,)
        self.shared = None
        self._sizes = row.parts
        width = sum(cached_width(size, dtype) for size in self._sizes)
        self._set(torch.empty((1, 1, 0, width), dtype=dtype, device=device))

    def write(self, position: int, kv: Tensor) -> None:
        """Store (T, rank + rope), or (T, rank + rope + index), from `position` on."""
        if self.both.dtype == torch.int8:
            kv = torch.cat([quantise_heads(part) for part in kv.split(self._sizes, -1)], -1)
        self.both[0, 0].narrow(0, position - self.first, len(kv)).copy_(kv)

    def read(self, start: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys from position `start` on, (1, 1, length, rank + rope), and their first `rank` numbers.

        These are the values.
        """
        rank, rope = self._sizes[:2]
        rows, (first, second) = self._rows(start, length), self._widths[:2]
        if rows.dtype == torch.int8:
            parts = rows[..., : first + second].split((first, second), -1)
            keys = torch.cat([dequantise_heads(part) for part in parts], -1).to(dtype)
        else:
            keys = rows[..., : rank + rope].to(dtype)
        return keys, keys[..., :rank]

    def read_index(self, length: int) -> Tensor:
        """The indexer's keys of the first positions, (length, index), f32."""
        return self.read_part(2, 0, length)

    def read_part(self, part: int, start: int, stop: int, step: int = 1) -> Tensor:
        """A part of each `step`-th row from a position on, (n, numbers), f32; also of rows that are shared."""
        begin = sum(self._widths[:part])
        columns, first = slice(begin, begin + self._widths[part]), self.first
        rows: list[Tensor] = []
        if self.shared is not None and start < first:
            rows.append(self.shared[0, 0, start : min(stop, first) : step, columns])
            start += len(rows[0]) * step
        if start < stop:
            rows.append(self.both[0, 0, start - first : stop - first : step, columns])
        found = rows[0] if len(rows) == 1 else torch.cat(rows)
        return dequantise_heads(found).float() if found.dtype == torch.int8 else found.float()

    def write_part(self, part: int, position: int, numbers: Tensor, step: int) -> None:
        """Write a part (n, numbers) of each `step`-th row from a position on; these rows are the session's own."""
        begin, row = sum(self._widths[:part]), position - self.first
        if self.both.dtype == torch.int8:
            numbers = quantise_heads(numbers)
        target = self.both[0, 0, row : row + step * len(numbers) : step]
        target[:, begin : begin + self._widths[part]].copy_(numbers)

    def gather(self, positions: Tensor) -> Tensor:
        """The rows of these ascending positions, as a cache of them alone: (1, 1, n, numbers)."""
        first = self.first
        own = self.both.index_select(2, positions[positions >= first] - first)
        if self.shared is None:
            return own
        shared = self.shared.index_select(2, positions[positions < first])
        return torch.cat([shared, own], 2)

    def _rows(self, start: int, length: int) -> Tensor:
        return self.both.narrow(2, start - self.first, length)

    @property
    def _widths(self) -> list[int]:
        return [cached_width(size, self.both.dtype) for size in self._sizes]
