"""Latent attention to pools that an indexer chooses, by kernels that are generated for this computer's CPU."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.latent_cache import LatentCache
from potluck.engine.generated.latent import GeneratedLatentAttention, has_latent_sizes
from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import cache_fields, shared_fields
from potluck.engine.kernels.attending.pool_rows_kernel import PoolHeads
from potluck.engine.kernels.attending.pools_kernel import PoolScores
from potluck.engine.kernels.called.pools import PoolChooser
from potluck.engine.layers.attention import Step
from potluck.engine.layers.pool_indexer import PoolIndexer
from potluck.model.mixing.latent import LatentSpec


class GeneratedPoolLatentAttention(GeneratedLatentAttention):
    """The same as without pools. Keys of pools are made by torch, of whose steps each is that of the kernel of one token."""

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
            spec = self.indexer.spec
            sizes = (spec.q_size, spec.head_dim, spec.heads, spec.head_dim)
            of_index, _, weights, _ = rows[see_all:].split(sizes, -1)
            choose = self._chooser(cache, step.end)
            of_tokens = (queries[see_all:].split(1), of_index, weights)
            for position, (one, *given) in enumerate(
                zip(*of_tokens, strict=True), step.position + see_all
            ):
                seen = self._seen(choose(given[0], given[1], (position + 1) // spec.pool), position)
                memory = cache.gather(seen)
                last = memory.shape[2] - 1
                parts.append(self._kernels.attend(self._heads.attention, one, memory, last, None))
        return torch.cat(parts)

    def _chooser(self, cache: LatentCache, end: int) -> PoolChooser:
        """What chooses for tokens before the position `end`."""
        heads = pool_heads(self.spec, self._heads.attention)
        return PoolChooser(
            self._kernels, heads.scores, end // heads.pool, pool_fields(heads, cache)
        )

    def _seen(self, pools: Tensor, position: int) -> Tensor:
        """The tokens of these pools, and those after the last whole one up to a position."""
        pool = self.spec.indexer.pool if self.spec.indexer is not None else 1
        tokens = (pools[:, None] * pool + torch.arange(pool)).flatten()
        return torch.cat([tokens, torch.arange((position + 1) // pool * pool, position + 1)])


def pool_fields(heads: PoolHeads, cache: LatentCache) -> dict[str, int]:
    """Where the keys of pools are, by the names of the fields of `ChoosePools`."""
    cached, pool = heads.cached, heads.pool
    fields = cache_fields(cached, cache.both, cache.first) | shared_fields(cached, cache.shared)
    # In the row of a pool's last token, behind what attention reads.
    behind = (pool - 1) * cached.cached_bytes + cached.row_bytes
    return {
        "keys": fields["keys"] + behind,
        "own_from": fields["own_from"] // pool,
        "shared_keys": fields["shared_keys"] + behind,
        "stride": pool * cached.cached_bytes,
    }


def has_pool_latent_kernels(spec: LatentSpec, cache: torch.dtype) -> bool:
    """Whether the kernels compute it: rows of 8 bits have more parts than they know."""
    has_pools = spec.indexer is not None and spec.indexer.has_pools
    return has_pools and cache != torch.int8 and has_latent_sizes(spec)


def pool_heads(spec: LatentSpec, attention: Heads) -> PoolHeads:
    """The parameters of the indexer's kernels beside those of attention."""
    indexer = spec.indexer
    assert indexer is not None
    return PoolHeads(
        cached=attention,
        scores=PoolScores(
            heads=indexer.heads,
            head_dim=indexer.head_dim,
            scale=indexer.scale,
            chosen=indexer.chosen // indexer.pool,
            kind=attention.cache_kind,
        ),
        pool=indexer.pool,
        epsilon=indexer.norm_eps,
    )
