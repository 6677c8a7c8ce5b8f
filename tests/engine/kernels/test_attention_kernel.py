"""Attention of one token is that of float64."""

import math

import pytest
import torch
from torch_layers import attend, make_cache, make_heads

from potluck.engine.kernels.attention_kernel import SUMS, Heads
from potluck.engine.kernels.cache import quantise_heads
from potluck.engine.kernels.generated import KINDS, host_paths
from potluck.engine.kernels.library import library

DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8


@pytest.mark.parametrize("path", [path.name for path in host_paths()])
@pytest.mark.parametrize(
    "heads",
    [
        make_heads(4, 2, 64, 64, BF16),
        make_heads(3, 1, 40, 20, F32, softcap=2.0),
        make_heads(8, 8, 16, 16, F16, scale=0.3),
        make_heads(2, 1, 128, 128, F32),
        make_heads(7, 1, 24, 0, BF16),
        make_heads(8, 1, 10, 10, INT8, softcap=30.0),
        make_heads(4, 2, 256, 256, INT8),
    ],
    ids=lambda heads: f"{heads.heads}-{heads.kv_heads}-{heads.head_dim}-{heads.cache_kind}",
)
@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 16), (3, 17), (0, 100)])
def test_attention_is_that_of_float64(path: str, heads: Heads, start: int, length: int) -> None:
    dtype, head_dim = DTYPES[heads.cache_kind], heads.head_dim
    q = 3 * torch.randn(heads.heads, head_dim)
    nothing = torch.full((2, heads.kv_heads, start + length + 2, head_dim), math.nan)
    nothing[:, :, start : start + length] = torch.randn(2, heads.kv_heads, length, head_dim)
    cache = make_cache(heads, start + length + 2, dtype)
    cache.copy_(quantise_heads(nothing) if dtype == INT8 else nothing)
    out, scores = torch.empty(heads.heads, head_dim), torch.empty(heads.heads, 112)
    sums = torch.empty(heads.heads, SUMS)
    keys, values = (cache[part, :, start:].data_ptr() for part in range(2))
    stride = cache.stride(1) * cache.itemsize
    places = (keys, values, stride, length, scores.data_ptr(), 112, sums.data_ptr())
    arguments = torch.tensor((q.data_ptr(), *places, out.data_ptr()))

    library(path).attend(heads)(arguments.data_ptr(), 0, heads.kv_heads)

    expected = attend(q, heads, cache, start, start + length)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5)
