"""The cache of a layer whose attention sees pools of tokens."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache, empty_rows
from potluck.model.caches import Held, PooledCache


def pool_dtype(dtype: torch.dtype) -> torch.dtype:
    """What such a cache holds: integers would do for keys, but not for what pools are made of."""
    return torch.bfloat16 if dtype == torch.int8 else dtype


class PoolCache(LayerCache):
    """Keys of the last tokens with what pools are made of, and keys of pools: (1, 1, rows, unit).

    A token takes some rows, and a pool one. The pools begin behind the rows for tokens.
    """

    __slots__ = ("_pools", "_tokens", "spec")

    def __init__(self, spec: PooledCache, dtype: torch.dtype, device: torch.device):
        self.held, self.spec = (0,), spec
        self.shared = None
        memory = torch.empty((1, 1, 0, spec.row.unit), dtype=pool_dtype(dtype), device=device)
        self._set(memory)

    def write(self, position: int, kv: Tensor) -> None:
        """Store (T, numbers) of tokens from `position` on: the key, then what pools are made of."""
        self._tokens.narrow(0, position - self.first, len(kv))[:, : kv.shape[1]].copy_(kv)

    def tokens(self, start: int, stop: int) -> Tensor:
        """Those of tokens from a position on, (n, numbers)."""
        return self._tokens[start - self.first : stop - self.first]

    def write_pools(self, first: int, keys: Tensor) -> None:
        """Store (n, unit) of pools from the number `first` on."""
        self._pools.narrow(0, first, len(keys)).copy_(keys)

    def pools(self, count: int) -> Tensor:
        """The first pools, (count, unit)."""
        return self._pools[:count]

    @property
    def token_rows(self) -> Tensor:
        """The memory of tokens, (1, 1, tokens, numbers)."""
        return self._tokens[None, None]

    @property
    def pool_rows(self) -> Tensor:
        """The memory of pools, (1, 1, pools, numbers)."""
        return self._pools[None, None]

    def resize(self, rows: int, length: int) -> None:
        spec, old_tokens, old_pools = self.spec, self._tokens, self._pools
        held = length - self.first
        self._set(empty_rows(self.both, (1, 1, rows, spec.row.unit)))
        self._tokens[:held].copy_(old_tokens[:held])
        pools = spec.pools(length)
        self._pools[:pools].copy_(old_pools[:pools])

    def advance(self, held: Held, end: int) -> None:
        step = held[0] - self.first
        rows = self._tokens[step : end - self.first].clone()
        self._tokens[: len(rows)].copy_(rows)
        self.held = held

    def copy(self, other: LayerCache, position: int) -> None:
        assert isinstance(other, PoolCache)
        self.held = other.held
        tokens, pools = position - self.first, self.spec.pools(position)
        self._tokens[:tokens].copy_(other._tokens[:tokens])
        self._pools[:pools].copy_(other._pools[:pools])

    def _set(self, both: Tensor) -> None:
        super()._set(both)
        row, rows = self.spec.row, both[0, 0]
        count, _ = self.spec.split(len(rows))
        self._tokens = rows[: count * row.units].view(count, row.units * row.unit)
        self._pools = rows[count * row.units :]
