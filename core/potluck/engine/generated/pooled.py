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
from potluck.engine.kernels.called.generated import GeneratedKernels
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
        self._kernels = kernels
        self._heads = Heads(
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
        kernels.prepare_attention(self._heads)

    def _attend(
        self, queries: Tensor, of_index: Tensor, cache: PoolCache, step: Step, some: slice
    ) -> Tensor:
        spec, first = self.spec, step.position + some.start
        end = step.position + some.stop
        count = cache.spec.pools(end) if spec.pooler is not None else 0
        pools, chosen = cache.pools(count), None
        if spec.pooler is not None and self.index is not None and count:
            angles = step.angles[spec.rope].some(some)
            whole = torch.arange(first + 1, end + 1)[:, None] // spec.pooler.rate
            chosen = self.index.choose(
                of_index, pools[:, spec.head_dim :], torch.arange(count) < whole,
                lambda x: turn(x, angles, spec.rotary_dim),
            )  # fmt: skip
        out = torch.empty(queries.shape)
        for token, query in enumerate(queries.flatten(1)):
            position = first + token
            begin = max(0, position + 1 - spec.window)
            rows = [cache.tokens(begin, position + 1)[:, : spec.head_dim]]
            if chosen is not None:
                rows.append(pools[:, : spec.head_dim][chosen[token]])
            elif spec.pooler is not None:
                rows.append(pools[: (position + 1) // spec.pooler.rate, : spec.head_dim])
            memory = torch.cat(rows)[None, None]
            place = memory, memory.shape[2] - 1, None, 0, None
            one = self._kernels.attend(self._heads, query[None], *place, self._sinks)
            out[token] = one.view(spec.heads, -1)
        return out


def has_pooled_kernels(spec: PooledSpec) -> bool:
    """Whether the kernels compute it: of other sizes, a vector would belong to two heads."""
    return spec.head_dim % LANES == 0
