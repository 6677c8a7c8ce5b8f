"""An indexer that chooses pools of tokens, in torch: see `IndexerSpec`.

What is cached of a token is its key, and its gates behind it. In the row of a pool's last token the key of the pool stands
in place of the token's own, which is needed no more: a trim that takes the pool away takes this token too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.latent_cache import LatentCache
from potluck.engine.gates import Elementwise, in_order
from potluck.engine.kernels.products.tensors import Angles
from potluck.engine.layers.attention import Step
from potluck.engine.layers.choosing import Choice, choose
from potluck.engine.layers.indexer import Indexer, Turned
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.products import Product
from potluck.model.footprint import INDEX_QUERIES
from potluck.model.mixing.indexer import IndexerSpec

_KEYS, _GATES = 2, 3  # parts of a cached row


class PoolIndexer(Indexer):
    """Scores whole pools, and chooses those whose tokens a query sees."""

    __slots__ = ("_apply", "_product", "bias", "gates")

    def __init__(
        self,
        spec: IndexerSpec,
        queries: Linear,
        keys: Linear,
        norm: RmsNorm,
        weights: FloatLinear,
        gates: Linear,
        bias: Tensor,
        *,
        product: Product,
        apply: Elementwise,
    ) -> None:
        """Make it of its parts.

        Args:
            spec: its specification.
            queries: see `Indexer`, as what follows.
            keys: see there.
            norm: see there.
            weights: see there.
            gates: of keys in their pools.
            bias: (pool, K), f32, of the gates.
            product: multiplies numbers of f32.
            apply: computes functions.
        """
        super().__init__(spec, queries, keys, norm, weights)
        self.gates, self.bias, self._product, self._apply = gates, bias, product, apply

    def project(self, x: Tensor, latents: Tensor) -> tuple[Tensor, ...]:
        """The same as of others, and gates (T, K)."""
        return *super().project(x, latents), self.gates(x)

    def turn(self, rows: Tensor, angles: Angles) -> Turned:
        """What `project` gave of some tokens; the keys, normed, have their gates behind them."""
        spec = self.spec
        sizes = (spec.q_size, spec.head_dim, spec.heads, spec.head_dim)
        q, k, weights, gates = rows.split(sizes, -1)
        k = self.norm(k)
        queries = q.reshape(len(rows), spec.heads, -1)
        return Turned(queries, torch.cat((k, gates), -1), weights.float() * spec.scale)

    def note(self, cache: LayerCache, step: Step) -> None:
        """Cache the keys of pools that are whole now."""
        assert isinstance(cache, LatentCache)
        pool = self.spec.pool
        first, last = step.position // pool * pool, step.end // pool * pool
        if first == last:
            return
        keys, gates = (
            cache.read_part(part, first, last).view(-1, pool, self.spec.head_dim)
            for part in (_KEYS, _GATES)
        )
        pooled = in_order(self._apply.softmax(gates + self.bias, 1) * keys, 1)
        cache.write_part(_KEYS, first + pool - 1, pooled, pool)

    def choose(self, made: Turned, cache: LayerCache, step: Step) -> Choice:
        """For each token which cached ones it sees."""
        seen = self.seen(made.queries, made.weights, step.position, cache)
        return Choice(self.spec.sees, step.position, mask=seen, sees_fewer=True)

    def seen(self, queries: Tensor, weights: Tensor, position: int, cache: LayerCache) -> Tensor:
        """Which tokens those from a position on see, with queries (T, H, K) and weights (T, H): (T, tokens)."""
        assert isinstance(cache, LatentCache)
        spec, end, device = self.spec, position + len(queries), queries.device
        pools = end // spec.pool
        keys = cache.read_part(_KEYS, spec.pool - 1, pools * spec.pool, spec.pool)
        positions = torch.arange(position, end, device=device)[:, None]
        whole = torch.arange(pools, device=device) < (positions + 1) // spec.pool  # (T, pools)
        parts = [each.split(INDEX_QUERIES) for each in (queries, weights, whole)]
        found = [self._best(keys, *some) for some in zip(*parts, strict=True)]
        tokens = torch.arange(end, device=device)
        last = tokens >= (positions + 1) // spec.pool * spec.pool  # after the last whole pool
        of_pools = torch.cat(found).repeat_interleave(spec.pool, 1)
        last[:, : of_pools.shape[1]] |= of_pools
        return last & (tokens <= positions)

    def _best(self, keys: Tensor, queries: Tensor, weights: Tensor, whole: Tensor) -> Tensor:
        products = self._product(queries.float().flatten(0, 1), keys.contiguous(), None).relu_()
        products = products.view(len(queries), self.spec.heads, -1) * weights[:, :, None]
        scores = in_order(products, 1)
        scores.masked_fill_(~whole, -torch.inf)
        return choose(scores, min(self.spec.chosen // self.spec.pool, len(keys))) & whole

    @property
    def matrices(self) -> Sequence[Linear]:
        return *super().matrices, self.gates

    @property
    def small_bytes(self) -> int:
        return super().small_bytes + self.bias.nbytes
