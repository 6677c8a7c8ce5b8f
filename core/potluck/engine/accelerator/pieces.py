"""Which pieces of a layer a device computes with: torch's own operators where they are right there.

What takes their place is slower, and made of operators so simple that every device has them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.accelerator.probe import attends, norms_work
from potluck.engine.attention import Attention, Span, SpeltAttention
from potluck.engine.kvcache import LayerCache
from potluck.engine.norms import HeadNorm, ProjectionNorm, RmsNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The classes that layers are built of."""

    attention: type[Attention] = Attention
    rms_norm: type[RmsNorm] = RmsNorm
    head_norm: type[HeadNorm] = HeadNorm
    projection_norm: type[ProjectionNorm] = ProjectionNorm


class ExpandedAttention(Attention):
    """Many tokens with keys and values for every head of queries; one token as ever."""

    __slots__ = ()

    def _attend_many(self, q: Tensor, cache: LayerCache, span: Span, mask: Tensor | None) -> Tensor:
        shared = self.num_heads // self.num_kv_heads
        keys, values = cache.read(span.start, span.length, q.dtype)
        if shared > 1:
            keys, values = (each.repeat_interleave(shared, 1) for each in (keys, values))
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],  # (1, H, T, K)
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
        )
        return out.transpose(1, 2).reshape(-1, self.num_heads * self.head_dim)


class PlainRmsNorm(RmsNorm):
    """Squares, their mean, and a quotient, one after the other."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return (_normed(x, self.eps) * self.weight).to(x.dtype)


class PlainHeadNorm(HeadNorm):
    """Likewise."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return _normed(x, self.eps).mul_(self._per_head)


class PlainProjectionNorm(ProjectionNorm):
    """Likewise."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        parts = x.float().flatten(1).split(self._sizes, -1)
        normed = torch.cat([_normed(part, self.eps) for part in parts], -1)
        return normed.mul_(self.weight).view(x.shape)


def choose_pieces(device: torch.device, dtype: torch.dtype) -> Pieces:
    """What was tried on this device, and is right there. Has not run on a real GPU."""
    if device.type == "cpu":
        return Pieces()
    attention = _choose_attention(device, dtype)
    if norms_work(device):
        return Pieces(attention=attention)
    return Pieces(
        attention=attention,
        rms_norm=PlainRmsNorm,
        head_norm=PlainHeadNorm,
        projection_norm=PlainProjectionNorm,
    )


def _choose_attention(device: torch.device, dtype: torch.dtype) -> type[Attention]:
    """The first that is right; the last is made of what every device has."""
    for kind in _kinds(device, dtype):
        if attends(kind, device, dtype):
            return kind
    return SpeltAttention


def _kinds(device: torch.device, dtype: torch.dtype) -> tuple[type[Attention], ...]:
    """The fastest first."""
    if device.type != "cuda":
        return Attention, ExpandedAttention
    from potluck.engine.accelerator.aligned import AlignedAttention, has_flash

    # Without flash attention, heads that share keys have all scores in memory at once: at 8192 cached
    # tokens half a gigabyte and more. Of expanded keys torch's other kernel needs none.
    if has_flash(device, dtype):
        return AlignedAttention, ExpandedAttention
    return (ExpandedAttention,)


def _normed(x: Tensor, eps: float) -> Tensor:
    """New memory, f32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
