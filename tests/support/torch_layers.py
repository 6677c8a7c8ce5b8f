"""A decoder layer in plain torch, token by token, to compare generated kernels with."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.gates import gate
from potluck.engine.kernels import Kernels, Router
from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.cache import cached_width, dequantise_heads, quantise_heads
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.layer_weights import Expert, LayerWeights, Moe
from potluck.engine.kernels.products.tensors import DTYPES, Angles, FloatWeight, Weight
from potluck.engine.layers.mlp import route
from potluck.model.families.facts import PRE_NORMS, LayerNorms, QkNormKind
from potluck.model.formats import PackedFormat, WeightFormat
from potluck.model.routing import Routing

EPSILON = 1e-5


def make_heads(
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    dtype: torch.dtype,
    *,
    qk_norm: QkNormKind | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    has_sinks: bool = False,
    has_pairs: bool = False,
) -> Heads:
    return Heads(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary_dim, qk_norm=qk_norm,
        epsilon=EPSILON, scale=head_dim**-0.5 if scale is None else scale, softcap=softcap,
        cache_kind=KINDS[dtype], has_sinks=has_sinks, has_pairs=has_pairs,
    )  # fmt: skip


def make_cache(heads: Heads, capacity: int, dtype: torch.dtype) -> Tensor:
    width = cached_width(heads.head_dim, dtype)
    return torch.zeros((2, heads.kv_heads, capacity, width), dtype=dtype)


def make_qk_norm(heads: Heads) -> Tensor | None:
    """Return random weights for the QK norm of these heads."""
    match heads.qk_norm:
        case None:
            return None
        case "head":
            return torch.rand(2, heads.head_dim) + 0.5
        case "projection":
            return torch.rand((heads.heads + heads.kv_heads) * heads.head_dim) + 0.5


def make_angles(
    heads: Heads,
    position: int,
    tokens: int = 1,
    slowest: float = 0.01,
    *,
    has_factors: bool = False,
) -> Angles:
    """Return cosines and signed sines, (T, 1, rotary_dim), and factors of queries, if they are wanted."""
    speeds = torch.linspace(1, slowest, heads.rotary_dim // 2)
    angle = torch.arange(position, position + tokens)[:, None] * speeds
    cos, sin = angle.cos(), angle.sin()
    factors = 1 + torch.rand(tokens, 1, 1) if has_factors else None
    return Angles(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None], factors)


def rotate(qkv: Tensor, heads: Heads, angles: Angles | None, norm: Tensor | None) -> Tensor:
    """(T, H + 2 Hkv, K) → the same, with QK norm and rope applied to queries and keys."""
    qkv = qkv.clone()
    turned = heads.heads + heads.kv_heads
    if norm is not None:
        size = heads.head_dim
        parts = norm.flatten().split([size, size] if heads.qk_norm == "head" else _sizes(heads))
        for weight, some in zip(
            parts, (slice(heads.heads), slice(heads.heads, turned)), strict=True
        ):
            numbers = qkv[:, some].reshape(-1, weight.numel())
            normed = F.rms_norm(numbers, weight.shape, weight, heads.epsilon)
            qkv[:, some] = normed.view(qkv[:, some].shape)
    if angles is not None:
        half = heads.rotary_dim // 2
        cos, sin = angles[0][..., :half], angles[1][..., half:]
        a, b = qkv[:, :turned, :half].clone(), qkv[:, :turned, half : 2 * half].clone()
        qkv[:, :turned, :half] = a * cos - b * sin
        qkv[:, :turned, half : 2 * half] = b * cos + a * sin
        if angles.query_factors is not None:
            qkv[:, : heads.heads] *= angles.query_factors
    return qkv


def _sizes(heads: Heads) -> list[int]:
    return [heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim]


def read(cache: Tensor) -> Tensor:
    """Return the contents of a cache in float64."""
    return (dequantise_heads(cache) if cache.dtype == torch.int8 else cache).double()


def write(cache: Tensor, position: int, kv: Tensor) -> None:
    """Write the keys and values (2 Hkv, K) of one token into the cache."""
    kv = kv.view(2, -1, kv.shape[-1])
    cache[:, :, position] = quantise_heads(kv) if cache.dtype == torch.int8 else kv.to(cache.dtype)


def make_sinks(heads: Heads) -> Tensor | None:
    """Return random sinks, near and far above the scores, if these heads have some."""
    return 4 * torch.randn(heads.heads) if heads.has_sinks else None


def attend(
    q: Tensor, heads: Heads, cache: Tensor, start: int, end: int, sinks: Tensor | None = None
) -> Tensor:
    """Return attention (H, K) over the cached tokens from start to end."""
    cached = read(cache).repeat_interleave(heads.group, 1)
    keys, values = cached[:, :, start:end]
    scores = (keys @ q.double()[:, :, None])[..., 0] * heads.scale
    if heads.softcap is not None:
        scores = (scores / heads.softcap).tanh() * heads.softcap
    if sinks is not None:
        scores = torch.cat((scores, sinks.double()[:, None]), 1)
    powers = scores.softmax(-1)[:, : end - start]
    return (powers[:, None] @ values)[:, 0].float()


def random_layer(
    kernels: Kernels,
    heads: Heads,
    hidden: int,
    intermediate: int,
    formats: Sequence[WeightFormat],
    *,
    norms: LayerNorms[str] = PRE_NORMS,
    has_biases: bool = False,
    window: int | None = None,
    rope: int | None = 0,
    moe: Routing | None = None,
    shared: int = 0,
) -> LayerWeights:
    """Return a random layer: formats of queries, keys and values; of output; of gates and ups; of down."""

    def matrix(rows: int, width: int, held: WeightFormat) -> Weight:
        numbers = torch.randn(rows, width) / math.sqrt(width)
        if isinstance(held, PackedFormat):
            return kernels.pack(numbers, held)
        return FloatWeight(numbers.to(DTYPES[held]))

    def bias(rows: int) -> Tensor | None:
        return torch.randn(rows) if has_biases else None

    def mlp(size: int) -> Expert:
        gate_up, down = matrix(2 * size, hidden, formats[2]), matrix(hidden, size, formats[3])
        if moe is None:
            return Expert(gate_up, down)
        return Expert(gate_up, down, bias(2 * size), bias(hidden))

    experts = gate_up = down = None
    if moe is None:
        gate_up, down = mlp(intermediate)[:2]
    else:
        experts = Moe(
            router=Router(
                torch.randn(moe.rows, hidden) / math.sqrt(hidden),
                torch.randn(moe.count) / 4 if moe.has_bias else None,
                moe,
                bias(moe.rows),
            ),
            experts=tuple(mlp(intermediate) for _ in range(moe.count)),
            shared=mlp(shared) if shared else None,
        )
    qkv_rows = (heads.heads + 2 * heads.kv_heads) * heads.head_dim
    return LayerWeights(
        norms=norms.map(lambda _: torch.rand(hidden) + 0.5),
        qkv=matrix(qkv_rows, hidden, formats[0]),
        qkv_bias=bias(qkv_rows),
        qk_norm=make_qk_norm(heads),
        output=matrix(hidden, heads.heads * heads.head_dim, formats[1]),
        output_bias=bias(hidden),
        gate_up=gate_up,
        gate_up_bias=bias(2 * intermediate) if moe is None else None,
        down=down,
        down_bias=bias(hidden) if moe is None else None,
        moe=experts,
        window=window,
        sinks=make_sinks(heads),
        rope=rope,
    )


def run_layer(
    kernels: Kernels,
    layer: LayerWeights,
    shape: LayerShape,
    x: Tensor,
    cache: Tensor,
    position: int,
    angles: Sequence[Angles],
) -> Tensor:
    """Run a layer with torch's operators and the kernels' products, which have their own tests."""
    heads, norms, dense = shape.attention, layer.norms, layer.mlp
    assert layer.qkv is not None
    assert layer.output is not None
    assert dense is not None

    def norm(numbers: Tensor, weight: Tensor | None) -> Tensor:
        if weight is None:
            return numbers
        return F.rms_norm(numbers, weight.shape, weight, shape.epsilon)

    def multiply(matrix: Weight, numbers: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(matrix, FloatWeight):
            return F.linear(numbers, matrix.data.float(), bias)
        return kernels.multiply(matrix, kernels.quantise(numbers), addend=bias)

    qkv = multiply(layer.qkv, norm(x, norms.before_mixer), layer.qkv_bias)
    turn = None if layer.rope is None else angles[layer.rope]
    qkv = rotate(qkv.view(1, -1, heads.head_dim), heads, turn, layer.qk_norm)[0]
    write(cache, position, qkv[heads.heads :])
    start = 0 if layer.window is None else max(0, position + 1 - layer.window)
    attended = attend(qkv[: heads.heads], heads, cache, start, position + 1, layer.sinks).view(
        1, -1
    )
    added = multiply(layer.output, attended, layer.output_bias)
    x = x + shape.multiplier * norm(added, norms.after_mixer)
    before = norm(x, norms.before_mlp)

    def mlp(matrices: Expert) -> Tensor:
        gated = gate(multiply(matrices.gate_up, before, matrices.gate_up_bias), shape.activation)
        return multiply(matrices.down, gated, matrices.down_bias)

    if (moe := layer.moe) is not None:
        factors = route(before, moe.router)[0].tolist()
        added = sum(f * mlp(one) for f, one in zip(factors, moe.experts, strict=False) if f >= 0)
        if moe.shared is not None:
            has_gate = moe.router.routing.has_shared_gate
            added = added + (factors[-1] if has_gate else 1.0) * mlp(moe.shared)
        return x + added
    added = mlp(dense._replace(gate_up_bias=layer.gate_up_bias, down_bias=layer.down_bias))
    return x + shape.multiplier * norm(added, norms.after_mlp)
