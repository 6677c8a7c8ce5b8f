"""What is between the products of a layer, by our own kernels for NVIDIA GPUs."""

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine import gates
from potluck.engine.accelerator.aligned import AlignedAttention
from potluck.engine.accelerator.nvidia.operators import MOST_ATTENDED, NvidiaOperators
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Span
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.mlp import Gate
from potluck.engine.layers.norms import HeadNorm, Norm, QkNorm
from potluck.engine.layers.rotary import rotate
from potluck.model.families.facts import Activation
from potluck.model.mixing.mixers import AttentionSpec

_TOLERANCE = 0.02
_TRIED = 200  # cached tokens


class NvidiaAttention(AlignedAttention):
    """Attention whose single tokens are computed by kernels that share the cached tokens out over the GPU."""

    __slots__ = ("_factor", "_is_ours", "_operators")

    def __init__(
        self,
        spec: AttentionSpec,
        qkv: Linear,
        qk_norm: QkNorm | None,
        output: Linear,
        sinks: Tensor | None = None,
        *,
        operators: NvidiaOperators,
    ) -> None:
        super().__init__(spec, qkv, qk_norm, output, sinks)
        self._operators, self._factor = operators, spec.scale
        self._is_ours = attends(operators, spec.head_dim, spec.heads // spec.kv_heads)

    def _attend_one(self, q: Tensor, cache: LayerCache, span: Span) -> Tensor:
        if not self._is_ours or span.length > MOST_ATTENDED:
            return super()._attend_one(q, cache, span)
        keys, values = cache.read(span.start, span.length, q.dtype)  # (1, Hkv, length, K)
        queries = q.reshape(self.num_kv_heads, -1, self.head_dim)
        return self._operators.attend(queries, keys[0], values[0], span.mask, self._factor)[None]

    def _rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        self._operators.rotate(x, cosines, sines)

    def _norm_heads(self, x: Tensor) -> None:
        if isinstance(self.qk_norm, HeadNorm):
            self._operators.norm_heads(x, self.qk_norm.per_head, self.qk_norm.eps)
        else:
            super()._norm_heads(x)


@cache
def attends(operators: NvidiaOperators, size: int, group: int) -> bool:
    """Whether attention of heads of this size, of which so many share keys, is right here."""
    if not operators.can_attend(size, group):
        return False
    made = torch.Generator().manual_seed(0)
    q = torch.randn((2, group, size), generator=made).to(operators.device, operators.dtype)
    cached = torch.randn((2, 2, _TRIED + 5, size), generator=made).to(q)
    keys, values = cached[:, :, 3 : _TRIED + 3]
    mask = torch.zeros(_TRIED, dtype=q.dtype, device=q.device)
    mask[_TRIED // 2 :] = -torch.inf
    expected = F.scaled_dot_product_attention(
        *(each.float() for each in (q, keys, values)), attn_mask=mask[None].float(), scale=0.1
    ).flatten()
    return operators.is_right(
        f"attention of {group} heads of {size}",
        lambda: operators.attend(q, keys, values, mask, 0.1),
        expected,
        _TOLERANCE,
    )


def turns_heads(operators: NvidiaOperators) -> bool:
    """Whether norms of heads and rotations are right here: attention by our kernels has no others."""
    x = torch.randn((3, 2, 32), generator=torch.Generator().manual_seed(0)).to(operators.device)
    heads, weight = x.to(operators.dtype), torch.linspace(0.5, 1.5, 64, device=x.device).view(2, 32)
    half = torch.linspace(-1.0, 1.0, 48, device=x.device).to(operators.dtype).view(3, 1, 16)
    cosines, sines = torch.cat([half, half], -1), torch.cat([-half, half], -1)
    expected = torch.rms_norm(heads.float(), (32,), None, 1e-6) * weight
    rotate(expected, cosines.float(), sines.float())

    def turned() -> Tensor:
        operators.norm_heads(heads, weight, 1e-6)
        operators.rotate(heads, cosines, sines)
        return heads

    return operators.is_right("heads", turned, expected, _TOLERANCE)


def norm_of(operators: NvidiaOperators, other: Norm) -> Norm:
    """The root mean square norm of activations; `other` for other numbers, or where ours is wrong."""
    x = torch.randn((3, 100), generator=torch.Generator().manual_seed(0))
    rows = x.to(operators.device, operators.dtype)
    weight = torch.linspace(0.5, 1.5, 100, device=rows.device)
    expected = torch.rms_norm(rows.float(), (100,), weight, 1e-6)
    if not operators.is_right(
        "the norm", lambda: operators.rms_norm(rows, weight, 1e-6), expected, _TOLERANCE
    ):
        return other

    def norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float) -> Tensor:
        if x.dtype == operators.dtype and x.is_contiguous() and len(shape) == 1:
            return operators.rms_norm(x, weight, eps)
        return other(x, shape, weight, eps)

    return norm


def gate_of(operators: NvidiaOperators) -> Gate:
    """How an MLP's gates are applied."""
    x = torch.randn((3, 100), generator=torch.Generator().manual_seed(0))
    rows = x.to(operators.device, operators.dtype)
    if not operators.is_right(
        "the gate",
        lambda: operators.gate(rows, is_gelu=False),
        gates.gate(rows.float(), "silu"),
        _TOLERANCE,
    ):
        return gates.gate

    def gate(x: Tensor, activation: Activation, learned: Tensor | None = None, /) -> Tensor:
        if activation in ("silu", "gelu_pytorch_tanh") and x.dtype == operators.dtype:
            return operators.gate(x.contiguous(), is_gelu=activation != "silu")
        return gates.gate(x, activation, learned)

    return gate
