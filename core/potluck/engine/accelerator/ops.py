"""Choose a layer's operators on a device: torch's own, if they give right numbers there.

The others are replaced by slower ones, made of operators so simple that every device has them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.accelerator.probe import attends, norms_work
from potluck.engine.attention import Attention, EagerAttention, ExpandedAttention
from potluck.engine.norms import HeadNorm, ProjectionNorm, RmsNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOps:
    """The classes that layers are built of."""

    attention: type[Attention] = Attention
    rms_norm: type[RmsNorm] = RmsNorm
    head_norm: type[HeadNorm] = HeadNorm
    projection_norm: type[ProjectionNorm] = ProjectionNorm


class PlainRmsNorm(RmsNorm):
    """`RmsNorm` from squares, their mean and a quotient, without torch's own operator."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return (_normed(x, self.eps) * self.weight).to(x.dtype)


class PlainHeadNorm(HeadNorm):
    """`HeadNorm` without torch's own operator."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        return _normed(x, self._eps).mul_(self._per_head)


class PlainProjectionNorm(ProjectionNorm):
    """`ProjectionNorm` without torch's own operator."""

    __slots__ = ()

    def __call__(self, x: Tensor) -> Tensor:
        parts = x.float().flatten(1).split(self._sizes, -1)
        normed = torch.cat([_normed(part, self._eps) for part in parts], -1)
        return normed.mul_(self.weight).view(x.shape)


def choose_ops(device: torch.device, dtype: torch.dtype) -> LayerOps:
    """Try torch's operators on this device, and take those that are right.

    It has not run on a real GPU.
    """
    if device.type == "cpu":
        return LayerOps()
    attention = _choose_attention(device, dtype)
    if norms_work(device):
        return LayerOps(attention=attention)
    return LayerOps(
        attention=attention,
        rms_norm=PlainRmsNorm,
        head_norm=PlainHeadNorm,
        projection_norm=PlainProjectionNorm,
    )


def _choose_attention(device: torch.device, dtype: torch.dtype) -> type[Attention]:
    """The first kind of attention that is right. `EagerAttention` is right on every device."""
    for kind in _kinds(device, dtype):
        if attends(kind, device, dtype):
            return kind
    return EagerAttention


def _kinds(device: torch.device, dtype: torch.dtype) -> tuple[type[Attention], ...]:
    """The kinds of attention to try, the fastest first."""
    if device.type != "cuda":
        return Attention, ExpandedAttention
    # Imported late: it imports torch's compiler, which takes a second.
    from potluck.engine.accelerator.aligned import AlignedAttention, has_flash

    # Without flash attention, heads that share keys hold all scores in memory at once: at 8192 cached
    # tokens half a gigabyte and more. With expanded keys, torch has a kernel that holds no scores.
    if has_flash(device, dtype):
        return AlignedAttention, ExpandedAttention
    return (ExpandedAttention,)


def _normed(x: Tensor, eps: float) -> Tensor:
    """The norm of x without its weight, in new memory, f32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
