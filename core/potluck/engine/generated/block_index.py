"""Attention to chosen blocks of tokens by kernels that are generated for this computer's CPU."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import IndexedCache, LayerCache
from potluck.engine.generated.attention import GeneratedAttention
from potluck.engine.layers.attention import Step
from potluck.engine.layers.block_index import WithIndex


class GeneratedIndexedAttention(WithIndex, GeneratedAttention):
    """Attention with an indexer, with hidden states in f32."""

    __slots__ = ("index",)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        rows, queries = self.note(rows, cache, step)
        return super().mix(rows.contiguous(), cache, _Indexed(step, queries))

    def attend(self, q: Tensor, cache: LayerCache, step: Step) -> Tensor:
        assert isinstance(cache, IndexedCache)
        assert isinstance(step, _Indexed)
        dense = min(max(self.index.spec.dense_tokens - step.position, 0), len(q))
        parts: list[Tensor] = []
        if dense:
            parts.append(self.attend_all(q[:dense], cache, step.position))
        if dense < len(q):
            first = step.position + dense
            chosen = self.index.choose(step.queries[dense:], first, cache)
            seen = self.index.seen(chosen, first)
            parts += [self._one(*each, cache) for each in zip(q[dense:], seen, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _one(self, row: Tensor, seen: Tensor, cache: IndexedCache) -> Tensor:
        """The result of a token that sees these cached ones: (tokens,), or those of each head of keys."""
        memory = cache.gather(seen.nonzero()[:, 0]) if seen.dim() == 1 else _of_heads(cache, seen)
        place = memory, memory.shape[2] - 1, None, 0, None
        return self._kernels.attend(self._heads, row[None], *place, self.sinks)


def _of_heads(cache: IndexedCache, seen: Tensor) -> Tensor:
    """What each head of keys sees, (Hkv, tokens), of which all see as many."""
    counts = seen.sum(-1)
    assert bool((counts == counts[0]).all())
    return cache.gather_heads(seen.nonzero()[:, 1].view(len(seen), -1))


class _Indexed(Step):
    """A step with what its indexer made of its tokens."""

    __slots__ = ("queries",)

    def __init__(self, step: Step, queries: Tensor) -> None:
        """`queries` are the indexer's, (T, H, K)."""
        super().__init__(step.position, step.tokens, step.rotaries, queries.device)
        self.angles, self.queries = step.angles, queries
