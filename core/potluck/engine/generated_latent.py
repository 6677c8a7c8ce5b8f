"""Latent attention by kernels that are generated for this computer's CPU.

Queries are always absorbed, also those of a whole chunk: so a token has the same bits alone and among others. To
expand what is cached would take fewer products for a chunk of hundreds of tokens, but other sums.
"""

import torch
from torch import Tensor

from potluck.engine.attention import Step
from potluck.engine.indexer import Indexer
from potluck.engine.kernels.attention import LANES, Heads
from potluck.engine.kernels.attention_fields import KINDS
from potluck.engine.kernels.generated import GeneratedKernels
from potluck.engine.kernels.index_kernel import IndexHeads
from potluck.engine.kernels.indexing import TokenChooser, cache_index_keys
from potluck.engine.kernels.latent import cache_latents
from potluck.engine.kernels.latent_kernel import LatentHeads
from potluck.engine.kernels.layout import ROWS
from potluck.engine.kernels.tensors import Angles
from potluck.engine.kvcache import LayerCache
from potluck.engine.latent import LatentAttention
from potluck.engine.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.norms import RmsNorm
from potluck.model.latent import LatentSpec


class GeneratedLatentAttention(LatentAttention):
    """Latent attention with hidden states in f32. The cache may have any dtype in `KINDS`."""

    __slots__ = ("_heads", "_index", "_kernels")

    def __init__(
        self,
        spec: LatentSpec,
        *,
        inputs: Linear,
        queries: tuple[RmsNorm, Linear] | None,
        latent_norm: RmsNorm,
        key_up: Linear,
        value_up: Linear,
        output: Linear,
        indexer: Indexer | None = None,
        kernels: GeneratedKernels,
        cache: torch.dtype,
    ) -> None:
        super().__init__(
            spec,
            inputs=inputs,
            queries=queries,
            latent_norm=latent_norm,
            key_up=key_up,
            value_up=value_up,
            output=output,
            indexer=indexer,
        )
        self._kernels, self._heads = kernels, latent_heads(spec, cache)
        self._index = index_heads(spec, cache)
        kernels.prepare_attention(self._heads.attention)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        spec, heads, kernels = self.spec, self._heads, self._kernels
        T, H, first = step.tokens, spec.heads, cache.first
        assert spec.rope is not None
        rows, angles = rows.contiguous(), step.angles[spec.rope]
        norm = self.latent_norm.weight
        absorbed = cache_latents(
            kernels, heads, rows, cache.both, step.position, angles, norm, first
        )
        plain = rows[:, : spec.q_size].view(T, H, -1)[..., : spec.plain_dim]
        for head in range(H):
            absorbed[:, head, : spec.rank] = self._multiply(self.key_up, plain[:, head], head)
        queries = absorbed.view(T, -1)
        if self._index is None:
            mixed = self._attend_all(queries, cache, step.position)
        else:
            mixed = self._attend_chosen(self._index, queries, rows, cache, step)
        mixed = mixed.view(T, H, -1)
        out = rows.new_empty((T, H, spec.value_dim))
        for head in range(H):
            out[:, head] = self._multiply(self.value_up, mixed[:, head], head)
        return out.view(T, -1)

    def _attend_all(self, queries: Tensor, cache: LayerCache, position: int) -> Tensor:
        place = cache.both, position, None, cache.first, cache.shared
        return self._kernels.attend(self._heads.attention, queries, *place)

    def _attend_chosen(
        self, index: IndexHeads, queries: Tensor, rows: Tensor, cache: LayerCache, step: Step
    ) -> Tensor:
        """Cache the indexer's keys; have each token attend to all that is cached, or to what it chooses of more."""
        kernels, indexer, position = self._kernels, self.indexer, step.position
        assert indexer is not None
        assert self.spec.rope is not None
        angles, norm = step.angles[self.spec.rope], (indexer.norm.weight, indexer.norm.bias)
        sizes = (index.q_size, index.head_dim, index.heads)
        of_index, keys, weights = rows[:, -sum(sizes) :].split(sizes, -1)
        memory, first = cache.both, cache.first
        cache_index_keys(kernels, index, keys, memory, position, angles, norm, first)
        see_all = min(max(index.chosen - position, 0), step.tokens)
        parts = [self._attend_all(queries[:see_all], cache, position)] if see_all else []
        if see_all < step.tokens:
            choose = TokenChooser(
                kernels, index, memory, step.end, first=first, shared=cache.shared
            )
        for token in range(see_all, step.tokens):
            here = Angles(*(None if one is None else one[token : token + 1] for one in angles))
            chosen = choose(of_index[token], weights[token], position + token, here)
            one = queries[token : token + 1]
            parts.append(kernels.attend(index.cached, one, chosen, index.chosen - 1, None))
        return torch.cat(parts)

    def _multiply(self, ups: Linear, x: Tensor, head: int) -> Tensor:
        """(T, width) of a head times its matrix."""
        kernels = self._kernels
        match ups:
            case PackedLinear(weight=weight):
                rows = weight.rows // self.spec.heads
                return kernels.multiply(weight.rows_of(head * rows, rows), kernels.quantise(x))
            case FloatLinear(weight=weight):
                rows = len(weight) // self.spec.heads
                return kernels.multiply_plain(x, weight[head * rows :][:rows], None)
            case _:
                raise AssertionError(ups)


def has_latent_kernels(spec: LatentSpec) -> bool:
    """Whether the kernels compute it: of odd sizes, a vector or block would belong to two parts."""
    return spec.rank % LANES == 0 and spec.rank % ROWS == 0 and spec.value_dim % ROWS == 0


def latent_heads(spec: LatentSpec, cache: torch.dtype) -> LatentHeads:
    """The parameters of the kernels, with cached rows of dtype `cache`."""
    attention = Heads(
        heads=spec.heads,
        kv_heads=1,
        head_dim=spec.row,
        rotary_dim=spec.rotary_dim,
        qk_norm=None,
        epsilon=0.0,
        scale=spec.scale,
        softcap=None,
        cache_kind=KINDS[cache],
        rank=spec.rank,
        index_dim=0 if spec.indexer is None else spec.indexer.head_dim,
    )
    return LatentHeads(
        attention=attention,
        plain_dim=spec.plain_dim,
        value_dim=spec.value_dim,
        epsilon=spec.norm_eps,
    )


def index_heads(spec: LatentSpec, cache: torch.dtype) -> IndexHeads | None:
    """The parameters of the indexer's kernels; None: there is no indexer."""
    if (indexer := spec.indexer) is None:
        return None
    return IndexHeads(
        cached=latent_heads(spec, cache).attention,
        heads=indexer.heads,
        head_dim=indexer.head_dim,
        rotary_dim=indexer.rotary_dim,
        chosen=indexer.chosen,
        scale=indexer.scale,
        epsilon=indexer.norm_eps,
    )
