"""Pools of KV caches for a small stage."""

from collections.abc import Callable

import torch

from potluck.engine.caches.cache_pool import CachePool
from potluck.ids import SessionId
from potluck.model.cache_rows import KeysAndValues
from potluck.model.caches import CacheSpec, FullCache, WindowCache

CPU = torch.device("cpu")
PER_TOKEN = 2 * 2 * 3 * 4 * 4  # keys and values, layers, heads, values of a head, bytes of each

ROW = KeysAndValues(heads=3, size=4, number_bytes=4)
FULL = FullCache(row=ROW)
WINDOW = WindowCache(row=ROW, window=100, chunk=50, slack=40)

A, B, C = (SessionId(name) for name in "abc")


def make_pool(
    *specs: CacheSpec,
    context: int = 4096,
    budget: int = 1 << 30,
    budget_now: Callable[[int], int] | None = None,
    shares: bool = False,
) -> CachePool:
    """Return a pool, by default with two layers of full caches."""
    return CachePool(
        specs or (FULL, FULL),
        dtype=torch.float32,
        device=CPU,
        context=context,
        budget=budget,
        budget_now=budget_now,
        shares=shares,
    )
