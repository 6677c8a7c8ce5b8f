"""Latent attention to pools that an indexer chooses, by kernels that are generated for this computer's CPU."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.latent_cache import LatentCache
from potluck.engine.generated.latent import GeneratedLatentAttention, has_latent_sizes
from potluck.engine.layers.attention import Step
from potluck.engine.layers.pool_indexer import PoolIndexer
from potluck.model.mixing.latent import LatentSpec


class GeneratedPoolLatentAttention(GeneratedLatentAttention):
    """The same as without pools, but for the indexer, which torch computes with products of the kernels."""

    __slots__ = ()

    def _note(self, rows: Tensor, cache: LayerCache, step: Step) -> None:
        """Cache what the indexer keeps of the tokens."""
        assert isinstance(cache, LatentCache)
        assert isinstance(self.indexer, PoolIndexer)
        made = self.indexer.turn(rows, step.angles[self.spec.rope or 0])
        size = self.indexer.spec.head_dim
        for part, numbers in enumerate(made.keys.split(size, 1), 2):
            cache.write_part(part, step.position, numbers, 1)
        self.indexer.note(cache, step)

    def _attend_chosen(
        self, sees: int, queries: Tensor, rows: Tensor, cache: LayerCache, step: Step
    ) -> Tensor:
        assert isinstance(cache, LatentCache)
        assert isinstance(self.indexer, PoolIndexer)
        see_all = min(max(sees - step.position, 0), step.tokens)
        parts = [self._attend_all(queries[:see_all], cache, step.position)] if see_all else []
        if see_all < step.tokens:
            made = self.indexer.turn(rows[see_all:], step.angles[self.spec.rope or 0])
            place = step.position + see_all
            seen = self.indexer.seen(made.queries, made.weights, place, cache)
            for one, chosen in zip(queries[see_all:].split(1), seen, strict=True):
                memory = cache.gather(chosen.nonzero()[:, 0])
                last = memory.shape[2] - 1
                parts.append(self._kernels.attend(self._heads.attention, one, memory, last, None))
        return torch.cat(parts)


def has_pool_latent_kernels(spec: LatentSpec, cache: torch.dtype) -> bool:
    """Whether the kernels compute it: rows of 8 bits have more parts than they know."""
    has_pools = spec.indexer is not None and spec.indexer.has_pools
    return has_pools and cache != torch.int8 and has_latent_sizes(spec)
