"""A token through generated layers is what torch makes of it, piece by piece and as a whole."""

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels import Kernels, PackedWeight, ReferenceKernels
from potluck.engine.kernels.attention_kernel import Heads
from potluck.engine.kernels.decode import Decoder, LayerWeights
from potluck.engine.kernels.generated import KINDS, GeneratedKernels, host_paths
from potluck.engine.kernels.library import library

PATHS = [path.name for path in host_paths()]
EPSILON = 1e-5

every_path = pytest.mark.parametrize("path", PATHS)
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
every_heads = pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotary_dim", "dtype"),
    [
        (4, 2, 64, 64, BF16),
        (3, 1, 40, 20, F32),
        (8, 8, 16, 16, F16),
        (2, 1, 128, 128, F32),
        (7, 1, 24, 0, BF16),
    ],
)


def make_heads(
    heads: int, kv_heads: int, head_dim: int, rotary_dim: int, dtype: torch.dtype
) -> Heads:
    return Heads(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, rotary_dim=rotary_dim,
        epsilon=EPSILON, cache_kind=KINDS[dtype],
    )  # fmt: skip


def angles(heads: Heads, position: int) -> tuple[Tensor, Tensor]:
    angle = position * torch.linspace(1, 0.01, heads.rotary_dim // 2)
    return angle.cos(), angle.sin()


def rotate(qkv: Tensor, heads: Heads, cos: Tensor, sin: Tensor, norm: Tensor | None) -> Tensor:
    """(H + 2 Hkv, K) → the same; the queries and keys normed and turned."""
    qkv = qkv.clone()
    turned = heads.heads + heads.kv_heads
    if norm is not None:
        weights = norm.repeat_interleave(torch.tensor([heads.heads, heads.kv_heads]), 0)
        shape = (heads.head_dim,)
        qkv[:turned] = F.rms_norm(qkv[:turned], shape, None, heads.epsilon) * weights
    half = heads.rotary_dim // 2
    a, b = qkv[:turned, :half].clone(), qkv[:turned, half : 2 * half].clone()
    qkv[:turned, :half], qkv[:turned, half : 2 * half] = a * cos - b * sin, b * cos + a * sin
    return qkv


def attend(q: Tensor, cache: Tensor, start: int, end: int) -> Tensor:
    """(H, K) over the tokens from start to end."""
    keys, values = (part.repeat_interleave(len(q) // len(part), 0) for part in cache.double())
    keys, values = keys[:, start:end], values[:, start:end]
    scores = (keys @ q.double()[:, :, None])[..., 0] / math.sqrt(q.shape[1])
    return (scores.softmax(-1)[:, None] @ values)[:, 0].float()


@every_path
@every_heads
@pytest.mark.parametrize("has_norm", [False, True])
def test_queries_and_keys_turn_and_are_cached(
    path: str, heads: int, kv_heads: int, head_dim: int, rotary_dim: int,
    dtype: torch.dtype, has_norm: bool,
) -> None:  # fmt: skip
    shape = make_heads(heads, kv_heads, head_dim, rotary_dim, dtype)
    qkv = torch.randn(heads + 2 * kv_heads, head_dim)
    norm = torch.randn(2, head_dim) if has_norm else None
    cos, sin = angles(shape, 11)
    expected = rotate(qkv, shape, cos, sin, norm)
    cache = torch.full((2, kv_heads, 5, head_dim), 9.0, dtype=dtype)
    norms = (0, 0) if norm is None else (norm[0].data_ptr(), norm[1].data_ptr())
    new = [cache[part, :, 3:].data_ptr() for part in range(2)]

    turn = library(path).rotate(shape)
    turn(qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), *norms, *new, cache.stride(1))

    torch.testing.assert_close(qkv, expected, rtol=1e-5, atol=1e-5)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    cached = cache[:, :, 3].reshape(-1, head_dim).float()
    torch.testing.assert_close(cached, expected[heads:], rtol=tolerance, atol=tolerance)
    assert (cache[:, :, [0, 1, 2, 4]] == 9).all()


@every_path
@every_heads
@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 16), (3, 17), (0, 100)])
def test_attention_is_that_of_float64(
    path: str, heads: int, kv_heads: int, head_dim: int, rotary_dim: int,
    dtype: torch.dtype, start: int, length: int,
) -> None:  # fmt: skip
    shape = make_heads(heads, kv_heads, head_dim, rotary_dim, dtype)
    q = 3 * torch.randn(heads, head_dim)
    cache = torch.full((2, kv_heads, start + length + 2, head_dim), math.nan, dtype=dtype)
    cache[:, :, start : start + length] = torch.randn(2, kv_heads, length, head_dim).to(dtype)
    out, scores = torch.empty(heads, head_dim), torch.empty(heads, 112)
    keys, values = (cache[part, :, start:].data_ptr() for part in range(2))
    arguments = torch.tensor(
        [
            q.data_ptr(),
            keys,
            values,
            cache.stride(1),
            length,
            scores.data_ptr(),
            112,
            out.data_ptr(),
        ]
    )

    library(path).attend(shape)(arguments.data_ptr(), 0, kv_heads)

    expected = attend(q, cache, start, start + length)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


def random_layer(
    heads: Heads, hidden: int, intermediate: int, bits: Sequence[int], *, extras: bool
) -> LayerWeights:
    kernels = GeneratedKernels(host_paths()[0])

    def matrix(rows: int, width: int, bits: int) -> PackedWeight:
        return kernels.pack(torch.randn(rows, width) / math.sqrt(width), bits)

    qkv_rows = (heads.heads + 2 * heads.kv_heads) * heads.head_dim
    return LayerWeights(
        input_norm=torch.rand(hidden) + 0.5,
        qkv=matrix(qkv_rows, hidden, bits[0]),
        qkv_bias=torch.randn(qkv_rows) if extras else None,
        qk_norm=torch.rand(2, heads.head_dim) + 0.5 if extras else None,
        output=matrix(hidden, heads.heads * heads.head_dim, bits[1]),
        post_norm=torch.rand(hidden) + 0.5,
        gate_up=matrix(2 * intermediate, hidden, bits[2]),
        down=matrix(hidden, intermediate, bits[3]),
        window=5 if extras else None,
    )


def run_layer(
    kernels: Kernels, layer: LayerWeights, heads: Heads, x: Tensor, cache: Tensor, position: int
) -> Tensor:
    """The same layer of torch's operators and the kernels' products."""
    normed = kernels.quantise_normed(x, layer.input_norm, EPSILON)
    qkv = kernels.multiply(layer.qkv, normed, addend=layer.qkv_bias).view(-1, heads.head_dim)
    qkv = rotate(qkv, heads, *angles(heads, position), layer.qk_norm)
    cache[:, :, position] = qkv[heads.heads :].view(2, heads.kv_heads, -1)
    start = 0 if layer.window is None else max(0, position + 1 - layer.window)
    attended = attend(qkv[: heads.heads], cache, start, position + 1).view(1, -1)
    x = kernels.multiply(layer.output, kernels.quantise(attended), addend=x)
    normed = kernels.quantise_normed(x, layer.post_norm, EPSILON)
    gated = kernels.quantise_gated(kernels.multiply(layer.gate_up, normed))
    return kernels.multiply(layer.down, gated, addend=x)


@every_path
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("bits", "extras", "dtype"),
    [((4, 4, 4, 4), False, BF16), ((8, 8, 8, 8), True, F32), ((8, 4, 4, 8), True, F16)],
    ids=str,
)
def test_tokens_through_layers_are_those_of_torch(
    path: str, threads: int, dtype: torch.dtype, bits: tuple[int, ...], extras: bool
) -> None:
    torch.manual_seed(1)
    kernels = GeneratedKernels(next(known for known in host_paths() if known.name == path), threads)
    heads = make_heads(4, 2, 24, 24, dtype)
    layers = [random_layer(heads, 80, 112, bits, extras=extras) for _ in range(3)]
    caches = [torch.zeros(2, 2, 32, 24, dtype=dtype) for _ in layers]
    expected_caches = [cache.clone() for cache in caches]
    decoder = Decoder(kernels, layers, heads, EPSILON)

    for position in range(20):
        hidden = torch.randn(1, 80)
        expected = hidden
        for layer, cache in zip(layers, expected_caches, strict=True):
            expected = run_layer(ReferenceKernels(), layer, heads, expected, cache, position)
        decoder(hidden, caches, position, *angles(heads, position))

        # A rounding that falls to the other side in one layer is a step of 1/127 in the next.
        error = (hidden - expected).norm() / expected.norm()
        assert error < 0.02, f"position {position}"
    for cache, expected_cache in zip(caches, expected_caches, strict=True):
        assert (cache - expected_cache).float().norm() < 0.02 * expected_cache.float().norm()
    kernels.close()


def test_a_decoder_follows_caches_that_move() -> None:
    kernels = GeneratedKernels(host_paths()[0])
    heads = make_heads(2, 1, 16, 16, torch.float32)
    layers = [random_layer(heads, 32, 64, (4, 4, 4, 4), extras=False)]
    decoder, other = (Decoder(kernels, layers, heads, EPSILON) for _ in range(2))
    tokens = torch.randn(40, 1, 32)
    large = [torch.zeros(2, 1, 64, 16)]
    growing = [torch.zeros(2, 1, 8, 16)]

    for position, token in enumerate(tokens):
        if position == growing[0].shape[2]:
            growing = [F.pad(growing[0], (0, 0, 0, 8))]
        straight, moved = token.clone(), token.clone()
        decoder(straight, large, position, *angles(heads, position))
        other(moved, growing, position, *angles(heads, position))

        assert torch.equal(straight, moved)
