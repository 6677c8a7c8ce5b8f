"""Make the cache of a layer of its specification."""

import torch

from potluck.engine.caches.kvcache import IndexedCache, LayerCache
from potluck.engine.caches.latent_cache import LatentCache
from potluck.engine.caches.pool_cache import PoolCache
from potluck.engine.caches.state_cache import RowsAndState, StateCache
from potluck.model.cache_rows import KeysAndValues, Latent
from potluck.model.caches import CacheSpec, PooledCache, RecurrentCache, RowsAndStateCache


def new_cache(spec: CacheSpec, dtype: torch.dtype, device: torch.device) -> LayerCache:
    """An empty cache of a layer. What is cached of tokens has this dtype."""
    row = spec.row
    if isinstance(spec, RecurrentCache):
        return StateCache(spec, device)
    if isinstance(spec, RowsAndStateCache):
        return RowsAndState(spec, dtype, device)
    if isinstance(spec, PooledCache):
        return PoolCache(spec, dtype, device)
    if isinstance(row, Latent):
        return LatentCache(row, dtype, device)
    assert isinstance(row, KeysAndValues)
    if row.index:
        return IndexedCache(row, dtype, device)
    return LayerCache(row.heads, row.size, dtype, device)
