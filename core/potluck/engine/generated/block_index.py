"""Attention to chosen blocks of tokens by kernels that are generated for this computer's CPU."""

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import IndexedCache, LayerCache
from potluck.engine.generated.attention import GeneratedAttention
from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.blocks_kernel import BlockHeads
from potluck.engine.kernels.called.blocks import BlockChooser
from potluck.engine.layers.attention import Step
from potluck.engine.layers.block_index import BlockIndex, WithIndex
from potluck.model.mixing.block_index import HeadIndexSpec
from potluck.model.mixing.mixers import AttentionSpec


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
            choose = self._of_blocks if isinstance(self.index, BlockIndex) else self._of_heads
            parts += choose(q[dense:], step.queries[dense:], step.position + dense, cache)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _of_blocks(
        self, q: Tensor, queries: Tensor, position: int, cache: IndexedCache
    ) -> list[Tensor]:
        """The results of tokens from a position on, whose heads all see the same blocks."""
        assert isinstance(self.index, BlockIndex)
        chosen = self.index.choose(queries, position, cache)
        seen = self.index.seen(chosen, position)
        memories = (cache.gather(one.nonzero()[:, 0]) for one in seen)
        each = zip(q, memories, strict=True)
        return [self._one(row, memory, memory.shape[2]) for row, memory in each]

    def _of_heads(
        self, q: Tensor, queries: Tensor, position: int, cache: IndexedCache
    ) -> list[Tensor]:
        """The results of tokens from a position on, for each of whose heads of keys blocks are chosen."""
        shape = block_heads(self.spec, self._heads)
        place, end = (cache.both, cache.first, cache.shared), position + len(q)
        choose, parts = BlockChooser(self._kernels, shape, place, end), list[Tensor]()
        for at, (row, query) in enumerate(zip(q, queries, strict=True), position):
            tokens = (shape.chosen - 1) * shape.block + at % shape.block + 1
            parts.append(self._one(row, choose(query.contiguous(), at), tokens))
        return parts

    def _one(self, row: Tensor, memory: Tensor, tokens: int) -> Tensor:
        """The result of a token that sees so many rows."""
        place = memory, tokens - 1, None, 0, None
        return self._kernels.attend(self._heads, row[None], *place, self.sinks)


class _Indexed(Step):
    """A step with what its indexer made of its tokens."""

    __slots__ = ("queries",)

    def __init__(self, step: Step, queries: Tensor) -> None:
        """`queries` are the indexer's, (T, H, K)."""
        super().__init__(step.position, step.tokens, step.rotaries, queries.device)
        self.angles, self.queries = step.angles, queries


def has_index_kernels(spec: AttentionSpec) -> bool:
    """Whether attention has an indexer, and kernels go through what it chooses: as many tokens for each head."""
    index = spec.index
    return index is not None and (not isinstance(index, HeadIndexSpec) or index.last > 0)


def has_block_kernels(spec: AttentionSpec) -> bool:
    """Whether kernels choose what attention sees, if something does: for each head blocks, the last one among them."""
    return spec.index is None or (isinstance(spec.index, HeadIndexSpec) and spec.index.last > 0)


def block_heads(spec: AttentionSpec, attention: Heads) -> BlockHeads:
    """The parameters of the kernels that choose blocks for each head, beside those of attention."""
    index = spec.index
    assert isinstance(index, HeadIndexSpec)
    return BlockHeads(
        attention=attention,
        head_dim=index.head_dim,
        rotary_dim=spec.rotary_dim,
        block=index.block,
        chosen=index.chosen,
        last=index.last,
        epsilon=index.norm_eps,
    )
