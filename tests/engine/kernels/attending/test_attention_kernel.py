"""Attention of one token is that of float64."""

import ctypes
import math
import mmap
import sys

import pytest
import torch
from kernel_paths import BEST, every_path
from torch import Tensor
from torch_layers import attend, make_cache, make_heads, make_sinks

from potluck.engine.kernels.attending.attention import Heads, attended_part
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.attention_kernel import Attend, emit_attend, parts_floats
from potluck.engine.kernels.attending.cache import quantise_heads
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.library import library
from potluck.engine.kernels.paths import Path

DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8


def attended(
    kernels: GeneratedKernels,
    heads: Heads,
    q: Tensor,
    cache: Tensor,
    position: int,
    window: int,
    sinks: Tensor | None = None,
) -> Tensor:
    """(H, K): attention of the token at this position, which is cached."""
    out, parts = torch.empty_like(q), torch.empty(parts_floats(heads, position + 1))
    keys, values = cache
    arguments = Attend.structure(
        queries=q.data_ptr(), keys=keys.data_ptr(), values=values.data_ptr(),
        head_stride=cache.stride(1) * cache.itemsize, position=position, window=window,
        parts=parts.data_ptr(), out=out.data_ptr(), job=kernels.job, shares=kernels.shares,
        sinks=0 if sinks is None else sinks.data_ptr(),
    )  # fmt: skip
    kernels.wake()
    library(kernels.name).get(emit_attend, attended_part(heads))(ctypes.addressof(arguments))
    return out


@every_path
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
        make_heads(8, 2, 20, 20, F32, has_sinks=True),
        make_heads(2, 2, 64, 64, F16, softcap=2.0, has_sinks=True),
    ],
    ids=lambda heads: f"{heads.heads}-{heads.kv_heads}-{heads.head_dim}-{heads.cache_kind}",
)
@pytest.mark.parametrize(
    ("start", "length"), [(0, 1), (0, 16), (3, 17), (0, 100), (0, 700), (200, 400)]
)
def test_attention_is_that_of_float64(path: Path, heads: Heads, start: int, length: int) -> None:
    dtype, head_dim = DTYPES[heads.cache_kind], heads.head_dim
    q = 3 * torch.randn(heads.heads, head_dim)
    end = start + length
    nothing = torch.full((2, heads.kv_heads, end + 2, head_dim), math.nan)
    nothing[:, :, start:end] = torch.randn(2, heads.kv_heads, length, head_dim)
    cache = make_cache(heads, end + 2, dtype)
    cache.copy_(quantise_heads(nothing) if dtype == INT8 else nothing)

    sinks = make_sinks(heads)

    out = attended(GeneratedKernels(path), heads, q, cache, end - 1, length, sinks)

    expected = attend(q, heads, cache, start, end, sinks)
    # Over an int8 cache, queries and powers are rounded to 16 bits.
    tolerances = (1e-3, 3e-4) if dtype == INT8 else (1e-4, 2e-5)
    torch.testing.assert_close(out, expected, rtol=tolerances[0], atol=tolerances[1])


@pytest.mark.parametrize("heads", [make_heads(4, 2, 256, 256, INT8), make_heads(4, 1, 64, 0, INT8)])
@pytest.mark.parametrize("outlier", [1.0, 100.0])
def test_rounding_to_16_bits_costs_little_beside_that_of_an_int8_cache(
    heads: Heads, outlier: float
) -> None:
    q, kv = (
        3 * torch.randn(heads.heads, heads.head_dim),
        torch.randn(2, heads.kv_heads, 600, heads.head_dim),
    )
    q[:, 3] *= outlier
    kv[0, :, :, 5] *= outlier / 10
    kv[1, :, 7] *= outlier  # the value of a token
    cache = quantise_heads(kv)

    out = attended(GeneratedKernels(BEST), heads, q, cache, 599, 600)

    rounded = attend(q, heads, cache, 0, 600)
    exact = attend(q, make_heads(heads.heads, heads.kv_heads, heads.head_dim, 0, F32), kv, 0, 600)
    assert (out - rounded).norm() < (rounded - exact).norm() / 50


@pytest.mark.parametrize("heads", [make_heads(4, 1, 40, 0, F32), make_heads(6, 2, 16, 0, INT8)])
def test_any_number_of_threads_gives_the_same_bits(heads: Heads) -> None:
    dtype = DTYPES[heads.cache_kind]
    q, kv = (
        torch.randn(heads.heads, heads.head_dim),
        torch.randn(2, heads.kv_heads, 2000, heads.head_dim),
    )
    cache = quantise_heads(kv) if dtype == INT8 else kv
    outputs: list[Tensor] = []

    for threads in (1, 2, 5):
        kernels = GeneratedKernels(BEST, threads)
        outputs += [attended(kernels, heads, q, cache, 1999, 1900) for _ in range(20)]
        kernels.close()

    assert all(torch.equal(outputs[0], other) for other in outputs)


@pytest.mark.skipif(sys.platform == "win32", reason="protects memory by a call of Unix")
def test_nothing_before_the_tokens_that_are_seen_is_read() -> None:
    """A cache whose first rows were let go is addressed from where position 0 would be."""
    heads, start, end = make_heads(2, 1, 64, 0, F32), 303, 310
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    page = torch.frombuffer(memory, dtype=torch.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(page.data_ptr())
    assert libc.mprotect(address, mmap.PAGESIZE, 0) == 0  # neither read nor written
    both = torch.randn(2, 1, end, 64)
    keys = page[mmap.PAGESIZE :].view(F32)[: (end - start) * 64]
    keys.copy_(both[0, 0, start:].flatten())
    q, out = torch.randn(2, 64), torch.empty(2, 64)
    parts = torch.empty(parts_floats(heads, end))
    arguments = Attend.structure(
        queries=q.data_ptr(), keys=keys.data_ptr() - start * heads.cached_bytes,
        values=both[1].data_ptr(), head_stride=0, position=end - 1, window=end - start,
        parts=parts.data_ptr(), out=out.data_ptr(), shares=1,
    )  # fmt: skip

    library(BEST.name).get(emit_attend, attended_part(heads))(ctypes.addressof(arguments))

    torch.testing.assert_close(out, attend(q, heads, both, start, end), rtol=1e-4, atol=2e-5)
