"""Pools of KV caches of a small stage."""

from collections.abc import Callable

import torch

from potluck.engine.kvcache import CachePool
from potluck.ids import SessionId

CPU = torch.device("cpu")
PER_TOKEN = 2 * 2 * 3 * 4 * 4  # keys and values, layers, heads, values of a head, bytes of each

A, B, C = (SessionId(name) for name in "abc")


def make_pool(
    *, context: int = 4096, budget: int = 1 << 30, budget_now: Callable[[int], int] | None = None
) -> CachePool:
    return CachePool(
        layers=2,
        kv_heads=3,
        head_dim=4,
        dtype=torch.float32,
        device=CPU,
        context=context,
        budget=budget,
        budget_now=budget_now,
    )
