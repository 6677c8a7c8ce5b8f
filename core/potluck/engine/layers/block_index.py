"""Attention to blocks of tokens that an indexer chooses; `model/mixing/block_index.py` has the formulas.

Rows of the cache have a head of their own for the indexer: where others have a key, that of the token, and
where others have a value, in the row of a block's last token, the key of the block. A query that sees all tokens is computed
as in any attention. For another one the chosen rows are copied to one piece of memory, in their order: so its
bits depend on which tokens it sees, and on nothing else.
"""

from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.kvcache import IndexedCache, LayerCache
from potluck.engine.kernels.products.tensors import Angles
from potluck.engine.layers.attention import Attention, ExpandedAttention, Span, Step
from potluck.engine.layers.choosing import choose
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.products import Product
from potluck.model.footprint import INDEXED_QUERIES
from potluck.model.mixing.block_index import BlockIndexSpec, HeadIndexSpec
from potluck.model.powers import power

SpecT = TypeVar("SpecT", BlockIndexSpec, HeadIndexSpec)


def turned(x: Tensor, angles: Angles, dim: int, which: slice = slice(None)) -> Tensor:
    """(T, H, K) with rope of the first `dim` numbers; of these angles, those of `which`.

    In two steps, which all processors round alike.
    """
    turning, rest = x[..., :dim], x[..., dim:]
    cosines, sines = angles.cosines[which].float(), angles.sines[which].float()
    return torch.cat(((turning * cosines).add_(turning.roll(dim // 2, -1) * sines), rest), -1)


class _Index(Generic[SpecT]):
    """What both kinds of indexers are made of."""

    __slots__ = ("_product", "input", "key_norm", "query_norm", "rope", "rotary_dim", "spec")

    def __init__(
        self,
        spec: SpecT,
        input: Linear,  # noqa: A002 - as the specification calls it
        query_norm: RmsNorm,
        key_norm: RmsNorm,
        *,
        rope: int,
        rotary_dim: int,
        product: Product,
    ) -> None:
        """Put the parts together; `product` multiplies numbers of f32."""
        self.spec, self.input, self.rope, self.rotary_dim = spec, input, rope, rotary_dim
        self.query_norm, self.key_norm, self._product = query_norm, key_norm, product

    @property
    def nbytes(self) -> int:
        return self.input.nbytes + self.query_norm.nbytes + self.key_norm.nbytes


class BlockIndex(_Index[BlockIndexSpec]):
    """Keeps the keys of tokens and of blocks, and chooses blocks."""

    __slots__ = ()

    def note(self, rows: Tensor, cache: IndexedCache, step: Step) -> Tensor:
        """Cache the keys of some tokens, (T, …) of `BlockIndexSpec.input`, and return their queries (T, H, K), f32."""
        spec, block = self.spec, self.spec.block
        queries, keys = rows.float().split((spec.q_size, spec.head_dim), -1)
        cache.write_index(0, step.position, keys)
        first, last = step.position // block * block, step.end // block * block
        if last > first:  # blocks are whole now
            tokens = cache.read_index(0, first, last).view(-1, block, spec.head_dim)
            total = tokens[:, 0].clone()
            for index in range(1, block):  # in this order on every computer
                total += tokens[:, index]
            angles = step.rotaries[self.rope].angles(first, last - first)
            pooled = self.key_norm(total.div_(block))[:, None]
            of_blocks = turned(pooled, angles, self.rotary_dim, slice(None, None, block))[:, 0]
            cache.write_index(1, first + block - 1, of_blocks, block)
        normed = self.query_norm(queries.reshape(-1, spec.head_dim))
        angles = step.rotaries[self.rope].angles(step.position, step.tokens)
        return turned(normed.view(-1, spec.heads, spec.head_dim), angles, self.rotary_dim)

    def choose(self, queries: Tensor, position: int, cache: IndexedCache) -> Tensor:
        """For each query (T, H, K) from a position on which whole blocks it sees, (T, blocks)."""
        spec, end = self.spec, position + len(queries)
        blocks = end // spec.block
        keys = cache.read_index(1, spec.block - 1, blocks * spec.block, spec.block)
        device = keys.device
        whole = torch.arange(position + 1, end + 1, device=device)[:, None] // spec.block
        is_whole = torch.arange(blocks, device=device) < whole  # (T, blocks)
        found: list[Tensor] = []
        for some, valid in zip(
            queries.split(INDEXED_QUERIES), is_whole.split(INDEXED_QUERIES), strict=True
        ):
            products = self._product(some.reshape(-1, spec.head_dim), keys, None).relu_()
            products = products.view(len(some), spec.heads, blocks)
            scores = products[:, 0].clone()
            for head in range(1, spec.heads):  # in this order on every computer
                scores += products[:, head]
            scores.mul_(power(spec.head_dim, -0.5)).masked_fill_(~valid, -torch.inf)
            found.append(choose(scores, min(spec.chosen, blocks)) & valid)
        return torch.cat(found)

    def seen(self, chosen: Tensor, position: int) -> Tensor:
        """Which tokens queries from a position on see that chose these blocks: (T, tokens)."""
        block, end = self.spec.block, position + len(chosen)
        queries = torch.arange(position, end, device=chosen.device)[:, None]
        tokens = torch.arange(end, device=chosen.device)
        last = tokens >= (queries + 1) // block * block  # after the last whole block
        of_blocks = chosen.repeat_interleave(block, 1)
        last[:, : of_blocks.shape[1]] |= of_blocks
        return last & (tokens <= queries)


class HeadIndex(_Index[HeadIndexSpec]):
    """Keeps the keys of tokens, and chooses blocks for each head of keys."""

    __slots__ = ()

    def note(self, rows: Tensor, cache: IndexedCache, step: Step) -> Tensor:
        """Cache the keys of some tokens, (T, …) of `HeadIndexSpec.input`, and return their queries (T, H, K), f32."""
        spec = self.spec
        queries, keys = rows.float().split((spec.q_size, spec.head_dim), -1)
        angles = step.rotaries[self.rope].angles(step.position, step.tokens)
        normed = self.key_norm(keys.contiguous())[:, None]
        cache.write_index(0, step.position, turned(normed, angles, self.rotary_dim)[:, 0])
        normed = self.query_norm(queries.reshape(-1, spec.head_dim))
        return turned(normed.view(-1, spec.heads, spec.head_dim), angles, self.rotary_dim)

    def choose(self, queries: Tensor, position: int, cache: IndexedCache) -> Tensor:
        """For each query (T, H, K) from a position on which blocks each head sees, (T, H, blocks)."""
        spec, end = self.spec, position + len(queries)
        blocks = -(-end // spec.block)
        keys = cache.read_index(0, 0, end)
        at = torch.arange(position, end, device=keys.device)[:, None]
        is_later = torch.arange(end, device=keys.device) > at  # (T, tokens)
        numbers = torch.arange(blocks, device=keys.device)
        is_last = (numbers <= at // spec.block) & (numbers > at // spec.block - spec.last)
        found: list[Tensor] = []
        parts = (each.split(INDEXED_QUERIES) for each in (queries, is_later, is_last))
        for some, later, last in zip(*parts, strict=True):
            products = self._product(some.reshape(-1, spec.head_dim), keys, None)
            scores = products.view(len(some), spec.heads, end)
            scores = scores.masked_fill(later[:, None], -torch.inf)
            scores = F.pad(scores, (0, blocks * spec.block - end), value=-torch.inf)
            scores = scores.view(len(some), spec.heads, blocks, spec.block).amax(-1)
            is_seen = scores > -torch.inf
            scores = scores.masked_fill(last[:, None], torch.inf).flatten(0, 1)
            chosen = choose(scores, min(spec.chosen, blocks)).view(is_seen.shape)
            found.append(chosen & is_seen)
        return torch.cat(found)

    def seen(self, chosen: Tensor, position: int) -> Tensor:
        """Which tokens queries from a position on see that chose these blocks: (T, H, tokens)."""
        end = position + len(chosen)
        tokens = torch.arange(end, device=chosen.device)
        queries = torch.arange(position, end, device=chosen.device)[:, None, None]
        return chosen.repeat_interleave(self.spec.block, 2)[..., :end] & (tokens <= queries)


class WithIndex(Attention):
    """Attention with an indexer, whose matrix multiplies the same input; what computes it is another base."""

    __slots__ = ()

    index: BlockIndex | HeadIndex

    def __init__(self, *args: Any, index: BlockIndex | HeadIndex, **more: Any) -> None:
        """Make it as the other base, and of its indexer."""
        super().__init__(*args, **more)
        self.index = index

    def project(self, x: Tensor) -> Tensor:
        """What attention makes of its input (T, D), and behind it what the indexer makes of it."""
        return torch.cat([self.qkv(x), self.index.input(x)], 1)

    def note(self, rows: Tensor, cache: LayerCache, step: Step) -> tuple[Tensor, Tensor]:
        """Give what `project` gave to attention (T, …) and to the indexer, whose queries come back (T, H, K)."""
        assert isinstance(cache, IndexedCache)
        size = self.index.spec.q_size + self.index.spec.head_dim
        rows, of_index = rows.split((rows.shape[1] - size, size), 1)
        return rows, self.index.note(of_index, cache, step)

    @property
    def matrices(self) -> tuple[Linear, ...]:
        return self.qkv, self.index.input, self.output

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.index.nbytes


class IndexedAttention(WithIndex, ExpandedAttention):
    """Attention with an indexer, by torch's operators."""

    __slots__ = ("index",)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        rows, queries = self.note(rows, cache, step)
        if step.end <= self.index.spec.dense_tokens:
            return super().mix(rows, cache, step)
        assert isinstance(cache, IndexedCache)
        chosen = self.index.choose(queries, step.position, cache)
        seen = self.index.seen(chosen, step.position)
        if isinstance(self.index, HeadIndex):
            seen = self._of_heads(seen)
        return super().mix(rows, cache, _Chosen(step, seen))

    def _of_heads(self, seen: Tensor) -> Tensor:
        """(T, Hkv, tokens) → as torch's operator takes it: (Hkv, 1, tokens) of one token, (H, T, tokens) of many."""
        mask = seen.transpose(0, 1)
        if len(seen) == 1:
            return mask
        return mask.repeat_interleave(self.num_heads // self.num_kv_heads, 0)


class _Chosen(Step):
    """A step whose queries see chosen tokens alone."""

    __slots__ = ("_seen",)

    def __init__(self, step: Step, seen: Tensor) -> None:
        super().__init__(step.position, step.tokens, step.rotaries, seen.device)
        self.angles, self._seen = step.angles, seen

    def span(self, window: int | None) -> Span:
        return Span(0, self.end, self._seen, is_causal=False)
