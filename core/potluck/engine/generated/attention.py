"""Attention by kernels that are generated for this computer's CPU."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.device import CacheForm
from potluck.engine.generated.latent import has_latent_sizes
from potluck.engine.generated.pooled import has_pooled_kernels
from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.layers.attention import Attention, Step
from potluck.engine.layers.block_index import turned
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.norms import QkNorm
from potluck.model.mixing.channel_delta import ChannelDeltaSpec
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec, BesideSpec, Mixer
from potluck.model.mixing.pooled import PooledSpec
from potluck.model.mixing.short_convolution import ConvolutionSpec


class GeneratedAttention(Attention):
    """Attention with hidden states in f32. The cache may have any dtype in `KINDS`."""

    __slots__ = ("_heads", "_kernels", "_norm")

    def __init__(
        self,
        spec: AttentionSpec,
        qkv: Linear,
        qk_norm: QkNorm | None,
        output: Linear,
        sinks: Tensor | None = None,
        *,
        kernels: GeneratedKernels,
        cache: CacheForm,
    ) -> None:
        super().__init__(spec, qkv, qk_norm, output, sinks)
        self._kernels, self._heads = kernels, kernel_heads(spec, cache)
        self._norm = None if qk_norm is None else qk_norm.weight
        kernels.prepare(self._heads)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        place = cache.both, step.position
        angles = None if self._rope is None else step.angles[self._rope]
        kernels = self._kernels
        kernels.rope_and_cache(self._heads, rows, *place, angles, self._norm, cache.first)
        mixed = self.attend(rows, cache, step)
        if self.spec.has_gate:
            _, gates = self._without_gates(rows)
            return kernels.gate(torch.cat([gates, mixed], 1), "sigmoid")
        if (gate := self.spec.gate) is not None:
            return kernels.gate(torch.cat([self._gates(rows), mixed], 1), gate.function)
        return mixed

    def attend(self, q: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Attention of tokens whose rows of `project` have norm and rope: (T, H·K)."""
        if self.spec.in_chunks:
            return self._attend_in_chunks(q, cache, step)
        if ahead := step.ahead(self.window):
            return self._attend_ahead(q, cache, step.position, ahead)
        return self.attend_all(q, cache, step.position)

    def _attend_ahead(
        self, rows: Tensor, cache: LayerCache, position: int, ahead: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Attention of a step with rows that see each other: those by torch, what is between them by kernels."""
        mixed, begin = list[Tensor](), 0
        for first, end in (*ahead, (len(rows), len(rows))):
            if first > begin:
                mixed.append(self.attend_all(rows[begin:first], cache, position + begin))
            if end > first:
                mixed.append(self._attend_each_other(rows[first:end], cache, position + first))
            begin = end
        return torch.cat(mixed)

    def _attend_each_other(self, rows: Tensor, cache: LayerCache, position: int) -> Tensor:
        """Attention of rows from a position on, all of which see the last one."""
        end, spec = position + len(rows), self.spec
        start = max(0, 0 if self.window is None else position + 1 - self.window)
        mask = None
        if self.window is not None and end > self.window:
            queries = torch.arange(position, end)[:, None]
            mask = torch.arange(start, end) > queries - self.window
        q = rows.view(len(rows), -1, spec.head_dim)[:, : spec.heads].transpose(0, 1)[None]
        keys, values = cache.read_all(start, end - start, q.dtype)
        out = F.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=mask,
            scale=spec.scale,
            enable_gqa=spec.heads != spec.kv_heads,
        )
        return out.transpose(1, 2).reshape(len(rows), -1)

    def attend_all(self, rows: Tensor, cache: LayerCache, position: int) -> Tensor:
        """Attention of such tokens from a position on over all that is cached."""
        place = cache.both, position, self.window, cache.first, cache.shared
        return self._kernels.attend(self._heads, rows, *place, self.sinks)

    def _attend_in_chunks(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Attention of each chunk's tokens as if the text began with the chunk."""
        size, mixed, position = self.window, list[Tensor](), step.position
        assert size is not None
        for some in rows.split(_pieces(position, len(rows), size)):
            start = position - position % size
            place = cache.both, position - start, None, cache.first - start
            mixed.append(self._kernels.attend(self._heads, some, *place, sinks=self.sinks))
            position += len(some)
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


class GeneratedTakingAttention(GeneratedAttention):
    """The same with keys and values of an earlier layer, which have their norms and rope."""

    __slots__ = ()

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Queries that `project` gave, and behind them keys and values → (T, H·K)."""
        spec, shape = self.spec, (len(rows), self.num_heads, self.head_dim)
        own, taken = rows[:, : spec.q_size], rows[:, spec.q_size :]
        if self._norm is not None:
            heads = own.reshape(-1, self.head_dim)
            own = self._kernels.norm(heads, self._norm.view(-1), spec.qk_norm_eps)
        if self._rope is not None:
            own = turned(own.reshape(shape), step.angles[self._rope], spec.rotary_dim)
        kv = taken.view(len(rows), 2 * self.num_kv_heads, self.head_dim)
        cache.write(step.position, kv)
        return self.attend(torch.cat([own.reshape(len(rows), -1), taken], 1), cache, step)


def _pieces(position: int, tokens: int, size: int) -> list[int]:
    """Cut so many tokens from a position on where chunks begin."""
    pieces = [min(tokens, size - position % size)]
    while left := tokens - sum(pieces):
        pieces.append(min(left, size))
    return pieces


def has_kernels(spec: Mixer) -> bool:
    """Whether the kernels compute mixers of this specification, for one token and for many."""
    match spec:
        case (
            AttentionSpec() | DeltaNetSpec() | ChannelDeltaSpec() | MambaSpec() | ConvolutionSpec()
        ):
            return True
        case BesideSpec():
            return True
        case LatentSpec():
            return has_latent_sizes(spec)
        case PooledSpec():
            return has_pooled_kernels(spec)


def kernel_heads(spec: AttentionSpec, cache: CacheForm) -> Heads:
    """The parameters of the kernels, with keys and values in this form.

    Window and rope are not among them: layers that differ only in these share their kernels.
    """
    return Heads(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        rotary_dim=spec.rotary_dim,
        qk_norm=spec.qk_norm,
        epsilon=spec.qk_norm_eps,
        scale=spec.scale,
        softcap=spec.softcap,
        has_sinks=spec.has_sinks,
        cache_kind=KINDS[cache.dtype],
        has_pairs=cache.has_pairs,
        has_gates=spec.has_gate,
        qk_norm_after_rope=spec.qk_norm_after_rope,
        value_norm=spec.value_norm,
        keys_are_values=spec.keys_are_values,
        value_numbers=spec.value_numbers,
        value_scale=spec.value_scale,
        gate_rows=spec.gate_rows,
        gate_function="sigmoid" if spec.gate is None else spec.gate.function,
    )
