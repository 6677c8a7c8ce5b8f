"""Attention to pools of tokens by kernels that are generated for this computer's CPU.

The rows that a token sees are copied in their order, and the kernel of one token goes through them as through a short cache: so
a token's bits depend on nothing but these rows, alone and in a chunk.
"""

from typing import Any

import torch
from torch import Tensor

from potluck.engine.caches.pool_cache import PoolCache
from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.pooled_kernel import PooledHeads, PoolMaker
from potluck.engine.kernels.attending.pools_kernel import PoolScores
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.called.pools import PoolChooser
from potluck.engine.layers.attention import Step
from potluck.engine.layers.pooled import PooledAttention, turn
from potluck.model.mixing.pooled import PooledSpec


class GeneratedPooledAttention(PooledAttention):
    """The mixer with hidden states in f32."""

    __slots__ = ("_heads", "_kernels")

    def __init__(
        self, spec: PooledSpec, *, kernels: GeneratedKernels, cache: torch.dtype, **parts: Any
    ) -> None:
        """Make it of its parts, as the one in torch; `cache` is the dtype of cached numbers."""
        super().__init__(spec, **parts)
        self._kernels, self._heads = kernels, pooled_heads(spec, cache)
        kernels.prepare_attention(self._heads.attention)

    def _attend(
        self, queries: Tensor, of_index: Tensor, cache: PoolCache, step: Step, some: slice
    ) -> Tensor:
        spec, first = self.spec, step.position + some.start
        seen = self._pools(of_index, cache, step, some)
        out = torch.empty(queries.shape)
        for token, (query, pools) in enumerate(zip(queries.flatten(1), seen, strict=True)):
            position = first + token
            begin = max(0, position + 1 - spec.window)
            rows = cache.tokens(begin, position + 1)[:, : spec.head_dim]
            memory = torch.cat([rows, pools])[None, None]
            place = memory, memory.shape[2] - 1, None, 0, None
            one = self._kernels.attend(self._heads.attention, query[None], *place, self.sinks)
            out[token] = one.view(spec.heads, -1)
        return out

    def _pools(self, of_index: Tensor, cache: PoolCache, step: Step, some: slice) -> list[Tensor]:
        """The pools that each of some tokens sees, as rows of their keys."""
        spec, end = self.spec, step.position + some.stop
        positions = range(step.position + some.start, end)
        if spec.pooler is None:
            return [cache.tokens(end, end)[:, : spec.head_dim]] * len(positions)
        counts = [(position + 1) // spec.pooler.rate for position in positions]
        rows = cache.pools(cache.spec.pools(end))
        pools = rows[:, : spec.head_dim]
        if self.index is None or self._heads.index is None:
            return [pools[:count] for count in counts]
        index, angles = self._heads.index, step.angles[spec.rope].some(some)
        queries, weights = of_index.split((index.q_size, index.heads), 1)
        queries = queries.reshape(len(counts), index.heads, -1)
        queries = turn(queries, angles, spec.rotary_dim).flatten(1)
        keys = {
            "keys": rows.data_ptr() + spec.head_dim * rows.itemsize,
            "stride": rows.stride(0) * rows.itemsize,
        }
        choose = PoolChooser(self._kernels, index, len(rows), keys)
        of_tokens = zip(queries, weights, counts, strict=True)
        return [pools[choose(*one)] for one in of_tokens]


def has_pooled_kernels(spec: PooledSpec) -> bool:
    """Whether the kernels compute it: of other sizes, a vector would belong to two heads."""
    return spec.head_dim % LANES == 0


def pooled_heads(spec: PooledSpec, cache: torch.dtype) -> PooledHeads:
    """The parameters of the kernels, with cached numbers of dtype `cache`."""
    attention = Heads(
        heads=spec.heads,
        kv_heads=1,
        head_dim=spec.head_dim,
        rotary_dim=0,
        qk_norm=None,
        epsilon=0.0,
        scale=spec.scale,
        softcap=None,
        cache_kind=KINDS[cache],
        has_sinks=True,
        rank=spec.head_dim,
    )
    makers = (PoolMaker(size=p.size, inputs=p.inputs, overlaps=p.overlaps) for p in spec.poolers)
    index = None
    if (own := spec.index) is not None:
        index = PoolScores(
            heads=own.heads,
            head_dim=own.pooler.size,
            scale=own.scale,
            chosen=own.chosen,
            kind=KINDS[cache],
        )
    return PooledHeads(
        attention=attention,
        rotary_dim=spec.rotary_dim,
        window=spec.window,
        epsilon=spec.norm_eps,
        rate=0 if spec.pooler is None else spec.pooler.rate,
        makers=tuple(makers),
        index=index,
    )
