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
from potluck.engine.kernels.latent import cache_latents
from potluck.engine.kernels.latent_kernel import LatentHeads
from potluck.engine.kernels.layout import ROWS
from potluck.engine.kvcache import LayerCache
from potluck.engine.latent import LatentAttention
from potluck.engine.linear import FloatLinear, Linear, PackedLinear
from potluck.engine.norms import RmsNorm
from potluck.model.latent import LatentSpec


class GeneratedLatentAttention(LatentAttention):
    """Latent attention with hidden states in f32. The cache may have any dtype in `KINDS`."""

    __slots__ = ("_heads", "_kernels")

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
        place = cache.both, step.position, None, first, cache.shared
        mixed = kernels.attend(heads.attention, queries, *place).view(T, H, -1)
        out = rows.new_empty((T, H, spec.value_dim))
        for head in range(H):
            out[:, head] = self._multiply(self.value_up, mixed[:, head], head)
        return out.view(T, -1)

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
    if spec.indexer is not None:
        return False
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
    )
    return LatentHeads(
        attention=attention,
        plain_dim=spec.plain_dim,
        value_dim=spec.value_dim,
        epsilon=spec.norm_eps,
    )
