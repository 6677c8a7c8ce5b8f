"""Latent attention by kernels that are generated for this computer's CPU.

Queries are always absorbed, also those of a whole chunk: so a token has the same bits alone and among others. To
expand what is cached would take fewer products for a chunk of hundreds of tokens, but other sums.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.device import CacheForm
from potluck.engine.kernels.attending.attention import LANES, Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.index_kernel import IndexHeads
from potluck.engine.kernels.attending.latent_kernel import LatentHeads
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.called.indexing import ChosenRows, TokenChooser, cache_index_keys
from potluck.engine.kernels.called.latent import cache_latents
from potluck.engine.kernels.layout import ROWS
from potluck.engine.layers.attention import Step
from potluck.engine.layers.choosing import Choice
from potluck.engine.layers.indexer import Indexer
from potluck.engine.layers.latent import LatentAttention
from potluck.engine.layers.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.layers.norms import RmsNorm
from potluck.model.mixing.latent import LatentSpec


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
        cache: CacheForm,
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
        self._index = index_heads(spec, self._heads.attention)
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
        of_index = rows[:, spec.q_size + spec.row :]
        if self.indexer is not None:
            self._note(of_index, cache, step)
        if spec.sees is None:
            mixed = self._attend_all(queries, cache, step.position)
        else:
            mixed = self._attend_chosen(spec.sees, queries, of_index, cache, step)
        mixed = mixed.view(T, H, -1)
        out = rows.new_empty((T, H, spec.value_dim))
        for head in range(H):
            out[:, head] = self._multiply(self.value_up, mixed[:, head], head)
        return out.view(T, -1)

    def _attend_all(self, queries: Tensor, cache: LayerCache, position: int) -> Tensor:
        place = cache.both, position, None, cache.first, cache.shared
        return self._kernels.attend(self._heads.attention, queries, *place)

    def _attend_chosen(
        self, sees: int, queries: Tensor, rows: Tensor, cache: LayerCache, step: Step
    ) -> Tensor:
        """Have each token attend to all that is cached, or of more to those that are chosen."""
        kernels, heads = self._kernels, self._heads.attention
        see_all = min(max(sees - step.position, 0), step.tokens)
        parts = [self._attend_all(queries[:see_all], cache, step.position)] if see_all else []
        if see_all < step.tokens:
            place = cache.both, cache.first, cache.shared
            chosen = ChosenRows(kernels, heads, place, sees)
            for token, memory in enumerate(self._chosen(chosen, see_all, rows, step), see_all):
                one = queries[token : token + 1]
                parts.append(kernels.attend(heads, one, memory, sees - 1, None))
        return torch.cat(parts)

    def _chosen(
        self, chosen: ChosenRows, see_all: int, rows: Tensor, step: Step
    ) -> Iterator[Tensor]:
        """Of each token after the first ones, which see all, the rows that it sees, as a cache."""
        index, spec = self._index, self.spec
        if index is None:
            assert step.choice is not None
            for places in step.choice.places[see_all:].long().contiguous():
                yield chosen.copy(places)
            return
        assert spec.rope is not None
        of_index, _, weights = rows.split(index.parts, -1)
        choose = TokenChooser(self._kernels, index, chosen, step.end)
        places = torch.zeros((step.tokens, index.chosen + 1), dtype=torch.int64)
        step.choice = Choice(index.chosen, step.position, places=places[:, :-1])
        for token in range(see_all, step.tokens):
            here = step.angles[spec.rope].of(token)
            position = step.position + token
            yield choose(of_index[token], weights[token], position, here, places[token])

    def _note(self, rows: Tensor, cache: LayerCache, step: Step) -> None:
        """Cache the indexer's keys of the tokens."""
        assert self.indexer is not None
        assert self._index is not None
        assert self.spec.rope is not None
        weight, bias = self.indexer.norm.weight
        _, keys, _ = rows.split(self._index.parts, -1)
        cache_index_keys(
            self._kernels, self._index, keys, cache.both, step.position,
            step.angles[self.spec.rope], (weight, bias), cache.first,
        )  # fmt: skip

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
    """Whether the kernels compute it, an indexer included."""
    has_pools = spec.indexer is not None and spec.indexer.has_pools
    return not has_pools and has_latent_sizes(spec)


def has_latent_sizes(spec: LatentSpec) -> bool:
    """Whether they do by its sizes: of odd ones, a vector or block would belong to two parts."""
    return spec.rank % LANES == 0 and spec.rank % ROWS == 0 and spec.value_dim % ROWS == 0


def latent_heads(spec: LatentSpec, cache: CacheForm) -> LatentHeads:
    """The parameters of the kernels, with cached rows in this form."""
    attention = Heads(
        heads=spec.heads,
        kv_heads=1,
        head_dim=spec.row,
        rotary_dim=spec.rotary_dim,
        qk_norm=None,
        epsilon=0.0,
        scale=spec.scale,
        softcap=None,
        cache_kind=KINDS[cache.dtype],
        has_pairs=cache.has_pairs,
        rank=spec.rank,
        index_dim=0 if spec.indexer is None else spec.indexer.cached_numbers,
    )
    return LatentHeads(
        attention=attention,
        plain_dim=spec.plain_dim,
        value_dim=spec.value_dim,
        epsilon=spec.norm_eps,
    )


def index_heads(spec: LatentSpec, attention: Heads) -> IndexHeads | None:
    """The parameters of the indexer's kernels beside those of attention; None: there is no indexer."""
    if (indexer := spec.indexer) is None or indexer.has_pools:
        return None
    return IndexHeads(
        cached=attention,
        heads=indexer.heads,
        head_dim=indexer.head_dim,
        rotary_dim=indexer.rotary_dim,
        chosen=indexer.chosen,
        scale=indexer.scale,
        epsilon=indexer.norm_eps,
    )
