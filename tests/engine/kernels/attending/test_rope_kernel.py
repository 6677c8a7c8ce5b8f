"""Queries and keys are normed, turned by rope and cached as torch does it, one token or many."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from kernel_paths import BEST, every_path
from torch_layers import make_angles, make_cache, make_heads, make_qk_norm, rotate

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.cache import dequantise_heads, quantise_heads
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.paths import Path

DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
TOLERANCE = {F32: 1e-5, BF16: 1e-2, F16: 2e-3, INT8: 2e-2}

every_heads = pytest.mark.parametrize(
    "heads",
    [
        make_heads(4, 2, 64, 64, BF16),
        make_heads(3, 1, 40, 20, F32, qk_norm="projection"),
        make_heads(8, 8, 16, 16, F16, qk_norm="head"),
        make_heads(2, 1, 128, 128, F32, qk_norm="head"),
        make_heads(7, 1, 24, 0, BF16, qk_norm="projection"),
        make_heads(4, 2, 10, 10, INT8),
        make_heads(2, 1, 256, 256, INT8, qk_norm="head"),
    ],
    ids=lambda heads: f"{heads.heads}-{heads.kv_heads}-{heads.head_dim}-{heads.cache_kind}",
)


@every_path
@every_heads
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("turns", [True, False, "with factors"])
def test_queries_and_keys_turn_and_are_cached(
    path: Path, heads: Heads, tokens: int, turns: bool | str
) -> None:
    dtype = DTYPES[heads.cache_kind]
    qkv = torch.randn(tokens, heads.heads + 2 * heads.kv_heads, heads.head_dim)
    norm = make_qk_norm(heads)
    has_factors = turns == "with factors"
    angles = make_angles(heads, 11, tokens, has_factors=has_factors) if turns else None
    expected = rotate(qkv, heads, angles, norm)
    cache = make_cache(heads, 3 + tokens + 1, dtype).fill_(9)

    GeneratedKernels(path).rope_and_cache(heads, qkv.view(tokens, -1), cache, 3, angles, norm)

    torch.testing.assert_close(qkv, expected, rtol=1e-5, atol=1e-5)
    cached = cache[:, :, 3 : 3 + tokens]
    numbers = dequantise_heads(cached) if dtype == INT8 else cached.float()
    kv = expected[:, heads.heads :].unflatten(1, (2, -1)).permute(1, 2, 0, 3)
    torch.testing.assert_close(numbers, kv, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert (cache[:, :, [0, 1, 2, -1]] == 9).all()


@every_path
@pytest.mark.parametrize("keys_are_values", [True, False])
@pytest.mark.parametrize("dtype", [F32, BF16, INT8])
def test_values_are_normed_and_may_be_the_keys_as_they_were(
    path: Path, dtype: torch.dtype, keys_are_values: bool
) -> None:
    heads = replace(
        make_heads(4, 2, 40, 40, dtype, qk_norm="head"),
        value_norm=True,
        keys_are_values=keys_are_values,
    )
    weights = torch.cat((torch.rand(2, 40) + 0.5, torch.ones(1, 40)))
    qkv = torch.randn(3, 6 if keys_are_values else 8, 40)
    values = qkv[:, -2:].clone()
    turned = rotate(qkv, heads, make_angles(heads, 5, 3), weights[:2])
    cache = make_cache(heads, 3, dtype)

    rows = qkv.view(3, -1)
    GeneratedKernels(path).rope_and_cache(heads, rows, cache, 0, make_angles(heads, 5, 3), weights)

    torch.testing.assert_close(qkv[:, :6], turned[:, :6], rtol=1e-5, atol=1e-5)
    keys, cached = dequantise_heads(cache) if dtype == INT8 else cache.float()
    normed = F.rms_norm(values, (40,), None, heads.epsilon).transpose(0, 1)
    torch.testing.assert_close(cached, normed, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    expected = turned[:, 4:6].transpose(0, 1)
    torch.testing.assert_close(keys, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@every_path
@pytest.mark.parametrize("head_dim", [10, 64, 80, 128])
def test_int8_is_cached_in_the_bytes_of_torch(path: Path, head_dim: int) -> None:
    heads = make_heads(2, 2, head_dim, 0, INT8)
    kv = torch.randn(6, 4, head_dim) * torch.tensor([1.0, 1e-20, 1e20, 3.0])[:, None]
    kv[0, 0] = 0
    kv[1, 1] = 1e-31
    kv[2, 2, 3] = float("inf")
    kv[3, 3, :5] = torch.tensor([127.0, 0.5, 1.5, -2.5, -127.0])
    kv[3, 3, 5:] = 0
    qkv = torch.cat((torch.zeros(6, 2, head_dim), kv), 1)
    cache = make_cache(heads, 6, INT8)

    GeneratedKernels(path).rope_and_cache(heads, qkv.view(6, -1), cache, 0, None, None)

    expected = quantise_heads(kv.view(6, 2, 2, head_dim).permute(1, 2, 0, 3))
    assert torch.equal(cache, expected)


@every_path
def test_what_is_not_finite_shows_in_the_cache(path: Path) -> None:
    heads = make_heads(1, 1, 64, 0, INT8)
    qkv = torch.ones(3, 3, 64)
    qkv[1, 1, 7], qkv[2, 2, 5] = float("nan"), float("-inf")
    cache = make_cache(heads, 3, INT8)

    GeneratedKernels(path).rope_and_cache(heads, qkv.view(3, -1), cache, 0, None, None)

    finite = dequantise_heads(cache)[:, 0].isfinite().all(-1)
    assert finite.tolist() == [[True, False, True], [True, True, False]]


def test_any_number_of_threads_caches_the_same_bytes() -> None:
    heads = make_heads(4, 1, 64, 64, INT8, qk_norm="head")
    norm, angles = make_qk_norm(heads), make_angles(heads, 3, 37)
    qkv = torch.randn(37, 6 * 64)
    results: list[tuple[torch.Tensor, torch.Tensor]] = []

    for threads in (1, 2, 5):
        kernels = GeneratedKernels(BEST, threads)
        cache, turned = make_cache(heads, 40, INT8), qkv.clone()
        kernels.rope_and_cache(heads, turned, cache, 3, angles, norm)
        results.append((turned, cache))
        kernels.close()

    for turned, cache in results[1:]:
        assert torch.equal(turned, results[0][0])
        assert torch.equal(cache, results[0][1])
