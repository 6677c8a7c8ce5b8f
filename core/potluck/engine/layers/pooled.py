"""Attention to the last tokens, and to pools of those before, in torch; `model/mixing/pooled.py` has the formulas."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.pool_cache import PoolCache
from potluck.engine.gates import Elementwise, in_order
from potluck.engine.kernels.products.tensors import Angles
from potluck.engine.layers.attention import Step
from potluck.engine.layers.choosing import choose
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.products import Product
from potluck.model.footprint import POOL_QUERIES
from potluck.model.mixing.pooled import PooledSpec, PoolerSpec, PoolIndexSpec


class Pooler:
    """Makes keys of pools."""

    __slots__ = ("_apply", "_rotary_dim", "bias", "norm", "spec")

    def __init__(
        self,
        spec: PoolerSpec,
        norm: RmsNorm,
        bias: Tensor,
        rotary_dim: int,
        apply: Elementwise,
    ) -> None:
        """Put the parts together; `bias` is (rate, inputs), f32, and `apply` computes functions."""
        self.spec, self.norm, self.bias = spec, norm, bias
        self._rotary_dim, self._apply = rotary_dim, apply

    def __call__(self, rows: Tensor, first: int, angles: Angles) -> Tensor:
        """The keys (n, size) of whole pools.

        Args:
            rows: numbers, then gates, of the pools' tokens, (n · rate, 2 · inputs); with overlap also those of
                the pool before.
            first: 1 if the first pool has one before it, else 0; without overlap it is always 0.
            angles: of the pools' tokens.
        """
        spec, size = self.spec, self.spec.size
        numbers, gates = rows.float().view(-1, spec.rate, 2 * spec.inputs).split(spec.inputs, -1)
        gates = gates + self.bias
        if spec.overlaps:
            late = slice(first, None)
            before = [_shifted(numbers[..., :size], first, 0.0), numbers[late, :, size:]]
            numbers = torch.cat(before, 1)
            gates = torch.cat(
                [_shifted(gates[..., :size], first, -torch.inf), gates[late, :, size:]], 1
            )
        keys = self.norm(in_order(numbers * self._apply.softmax(gates, 1), 1))
        return turn(keys, angles.some(slice(None, None, spec.rate)), self._rotary_dim)

    @property
    def nbytes(self) -> int:
        return self.norm.nbytes + self.bias.nbytes


class PoolIndex:
    """Chooses pools for queries."""

    __slots__ = ("_product", "queries", "spec", "weights")

    def __init__(
        self, spec: PoolIndexSpec, queries: Linear, weights: FloatLinear, product: Product
    ) -> None:
        """Put the parts together; `product` multiplies numbers of f32."""
        self.spec, self.queries, self.weights, self._product = spec, queries, weights, product

    def project(self, x: Tensor, latents: Tensor) -> Tensor:
        """Queries of the latents, and the heads' weights of hidden states: (T, …), f32."""
        return torch.cat([self.queries(latents).float(), self.weights(x.float())], 1)

    def choose(
        self, rows: Tensor, keys: Tensor, seen: Tensor, turned: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Which pools the tokens of `project`'s rows see, (T, pools), of those that are `seen`; `turned` is rope."""
        spec = self.spec
        queries, weights = rows.split((spec.q_size, spec.heads), 1)
        queries = turned(queries.reshape(len(rows), spec.heads, -1))
        products = self._product(queries.flatten(0, 1), keys.float().contiguous(), None).relu_()
        products = products.view(len(rows), spec.heads, -1) * weights[:, :, None]
        scores = in_order(products, 1).mul_(spec.scale)
        scores.masked_fill_(~seen, -torch.inf)
        return choose(scores, min(spec.chosen, len(keys))) & seen


class PooledAttention:
    """The mixer in torch."""

    __slots__ = (
        "_head_norm", "group_output", "index", "input", "key_norm", "poolers", "pooling", "queries",
        "query_norm", "sinks", "spec", "up",
    )  # fmt: skip

    def __init__(
        self,
        spec: PooledSpec,
        *,
        inputs: Linear,
        query_norm: RmsNorm,
        queries: Linear,
        head_norm: RmsNorm,
        key_norm: RmsNorm,
        sinks: Tensor,
        pooling: Linear | None,
        poolers: Sequence[Pooler],
        index: PoolIndex | None,
        group_output: Sequence[Linear],
        output: Linear,
    ) -> None:
        """Make it of its parts.

        Args:
            spec: of the layer.
            inputs: see `PooledSpec.input`.
            query_norm: of the queries' latent.
            queries: see `PooledSpec`.
            head_norm: of each query; its weights are ones.
            key_norm: of keys.
            sinks: (H,), f32.
            pooling: see `PooledSpec`.
            poolers: of attention, then of the indexer, if there are any.
            index: chooses pools, if something does.
            group_output: of each group of heads, its rows of `PooledSpec.group_output`.
            output: see `PooledSpec`.
        """
        self.spec, self.input, self.query_norm, self.queries = spec, inputs, query_norm, queries
        self._head_norm, self.key_norm, self.sinks = head_norm, key_norm, sinks
        self.pooling, self.poolers, self.index = pooling, tuple(poolers), index
        self.group_output, self.up = tuple(group_output), output

    def project(self, x: Tensor) -> Tensor:
        """Normed (T, D) → queries, keys, what pools are made of, and what the indexer makes of the tokens: (T, …)."""
        spec = self.spec
        latents, keys = self.input(x).split((spec.query_rank, spec.head_dim), 1)
        latents = self.query_norm(latents)
        heads = self._head_norm(self.queries(latents).view(-1, spec.head_dim))
        parts = [heads.view(len(x), -1).float(), self.key_norm(keys).float()]
        if self.pooling is not None:
            parts.append(self.pooling(x).float())
        if self.index is not None:
            parts.append(self.index.project(x, latents))
        return torch.cat(parts, 1)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, H·K). Keys, and what pools are made of, are cached."""
        assert isinstance(cache, PoolCache)
        spec, angles = self.spec, step.angles[self.spec.rope]
        pooled = sum(2 * one.inputs for one in spec.poolers)
        sizes = (
            spec.q_size,
            spec.head_dim,
            pooled,
            rows.shape[1] - spec.q_size - spec.head_dim - pooled,
        )
        queries, keys, inputs, of_index = rows.split(sizes, 1)
        keys = turn(keys, angles, spec.rotary_dim)
        cache.write(step.position, torch.cat([keys, inputs], 1))
        self._pool(cache, step)
        queries = turn(queries.reshape(step.tokens, spec.heads, -1), angles, spec.rotary_dim)
        parts = [
            self._attend(queries[some], of_index[some], cache, step, some)
            for some in _slices(step.tokens, POOL_QUERIES)
        ]
        out = turn(torch.cat(parts), angles.back(), spec.rotary_dim)
        return out.flatten(1).to(step.angles[0].cosines.dtype)

    def output(self, rows: Tensor) -> Tensor:
        """What `mix` gave → (T, D)."""
        groups = rows.chunk(self.spec.groups, 1)
        latents = [up(some) for up, some in zip(self.group_output, groups, strict=True)]
        return self.up(torch.cat(latents, 1))

    @property
    def matrices(self) -> Sequence[Linear]:
        pooling = () if self.pooling is None else (self.pooling,)
        index = () if self.index is None else (self.index.queries, self.index.weights)
        return self.input, self.queries, *pooling, *index, *self.group_output, self.up

    @property
    def nbytes(self) -> int:
        norms = self.query_norm.nbytes + self.key_norm.nbytes + self.sinks.nbytes
        small = norms + sum(one.nbytes for one in self.poolers)
        return small + sum(matrix.nbytes for matrix in self.matrices)

    def _pool(self, cache: PoolCache, step: Step) -> None:
        """Make the pools that are whole now."""
        if (pooler := self.spec.pooler) is None:
            return
        rate = pooler.rate
        first, last = step.position // rate, step.end // rate
        if first == last:
            return
        before = int(pooler.overlaps and first > 0)
        row = cache.spec.row
        tokens = cache.tokens((first - before) * rate, last * rate)[:, row.key :]
        tokens = tokens[:, : sum(row.inputs)].split(row.inputs, 1)
        angles = step.rotaries[self.spec.rope].angles(first * rate, (last - first) * rate)
        made = [one(part, before, angles) for one, part in zip(self.poolers, tokens, strict=True)]
        cache.write_pools(first, torch.cat(made, 1))

    def _attend(
        self, queries: Tensor, of_index: Tensor, cache: PoolCache, step: Step, some: slice
    ) -> Tensor:
        """Some tokens' queries, after rope: (T, H, K) → the same, f32."""
        spec = self.spec
        positions = torch.arange(
            step.position + some.start, step.position + some.stop, device=queries.device
        )[:, None]
        begin = max(0, step.position + some.start + 1 - spec.window)
        here = torch.arange(begin, step.position + some.stop, device=queries.device)
        mask = (here <= positions) & (here > positions - spec.window)
        keys = cache.tokens(begin, step.position + some.stop)[:, : spec.head_dim].float()
        if spec.pooler is not None and (count := cache.spec.pools(step.position + some.stop)):
            whole = (positions + 1) // spec.pooler.rate
            seen = torch.arange(count, device=queries.device) < whole
            pools = cache.pools(count)
            if self.index is not None:
                angles = step.angles[spec.rope].some(some)
                seen = self.index.choose(
                    of_index, pools[:, spec.head_dim :], seen,
                    lambda x: turn(x, angles, spec.rotary_dim),
                )  # fmt: skip
            keys = torch.cat([keys, pools[:, : spec.head_dim].float()])
            mask = torch.cat([mask, seen], 1)
        scores = (queries.float() @ keys.T).mul_(spec.scale)  # (T, H, n)
        scores.masked_fill_(~mask[:, None], -torch.inf)
        sinks = self.sinks[:, None].expand(len(scores), -1, -1)
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ keys


def turn(x: Tensor, angles: Angles, dim: int) -> Tensor:
    """Rope on the last `dim` numbers of (T, K) or (T, H, K), in pairs of neighbours; f32."""
    x = x.float()
    cosines, sines = (each[..., : dim // 2].float() for each in (angles.cosines, angles.sines))
    if x.dim() == 2:
        cosines, sines = cosines[:, 0], sines[:, 0]
    plain, turning = x[..., :-dim], x[..., -dim:]
    first, second = turning[..., ::2], turning[..., 1::2]
    # The sines of the first halves have their signs already. In two steps, which all processors round alike.
    turned = (first * cosines).add_(second * sines), (second * cosines).sub_(first * sines)
    return torch.cat([plain, torch.stack(turned, -1).flatten(-2)], -1)


def _shifted(x: Tensor, first: int, filler: float) -> Tensor:
    """Of each pool what the one before it has; of the very first one the filler."""
    if first:
        return x[:-1]
    return torch.cat([torch.full_like(x[:1], filler), x[:-1]])


def _slices(count: int, most: int) -> list[slice]:
    return [slice(begin, min(begin + most, count)) for begin in range(0, count, most)]
