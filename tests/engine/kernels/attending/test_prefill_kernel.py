"""Attention of many tokens is that of float64, wherever panels, windows and chunks end."""

import math

import pytest
import torch
from kernel_paths import BEST, every_path
from torch_layers import attend, make_cache, make_heads, make_sinks

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.attending.cache import quantise_heads
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads import Threads

DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
F32, BF16, F16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8
CASES = {
    "plain": (make_heads(4, 2, 64, 64, F16), None),
    "soft cap, window, odd heads": (make_heads(3, 1, 40, 20, F32, softcap=2.0), 7),
    "scale, no shared key heads": (make_heads(4, 4, 16, 16, BF16, scale=0.3), None),
    "int8, window": (make_heads(4, 1, 10, 10, INT8), 70),
    "sinks, window": (make_heads(8, 2, 20, 20, F32, has_sinks=True), 70),
    "sinks": (make_heads(3, 1, 64, 64, F16, has_sinks=True), None),
    "int8, large heads": (make_heads(2, 1, 256, 256, INT8, softcap=30.0), None),
}


def fill(heads: Heads, cached: int, capacity: int) -> torch.Tensor:
    """A cache with so many tokens, and garbage behind them."""
    nothing = torch.full((2, heads.kv_heads, capacity, heads.head_dim), math.nan)
    nothing[:, :, :cached] = torch.randn(2, heads.kv_heads, cached, heads.head_dim)
    dtype = DTYPES[heads.cache_kind]
    cache = make_cache(heads, capacity, dtype)
    return cache.copy_(quantise_heads(nothing) if dtype == INT8 else nothing)


@every_path
@pytest.mark.parametrize(("heads", "window"), CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    ("position", "tokens"), [(0, 2), (0, 19), (33, 8), (250, 13), (5, 300), (520, 1)]
)
def test_attention_is_that_of_float64(
    path: Path, heads: Heads, window: int | None, position: int, tokens: int
) -> None:
    qkv = 3 * torch.randn(tokens, heads.heads + 2 * heads.kv_heads, heads.head_dim)
    cache = fill(heads, position + tokens, position + tokens + 3)

    sinks = make_sinks(heads)
    kernels = GeneratedKernels(path)

    out = kernels.attend(heads, qkv.flatten(1), cache, position, window, sinks=sinks)

    for token in {0, tokens // 2, tokens - 1}:
        end = position + token + 1
        start = 0 if window is None else max(0, end - window)
        expected = attend(qkv[token, : heads.heads], heads, cache, start, end, sinks)
        got = out[token].view(heads.heads, -1)
        # Over an int8 cache, queries and powers are rounded to 16 bits.
        tolerances = (1e-3, 3e-4) if cache.dtype == INT8 else (1e-4, 2e-5)
        torch.testing.assert_close(got, expected, rtol=tolerances[0], atol=tolerances[1])


@pytest.mark.parametrize("name", ["plain", "int8, window"])
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    heads, window = CASES[name]
    rows = heads.heads + 2 * heads.kv_heads
    cache, qkv = fill(heads, 390, 400), torch.randn(90, rows * heads.head_dim)
    outputs: list[torch.Tensor] = []

    for threads in (1, 2, 5):
        kernels = GeneratedKernels(BEST, threads)
        outputs.append(kernels.attend(heads, qkv, cache, 300, window))
        kernels.close()

    assert all(torch.equal(outputs[0], other) for other in outputs)


def test_one_key_head_is_shared_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, threads, parts = make_heads(4, 1, 16, 16, F32), 4, list[int]()

    def note(_threads: Threads, _piece: int, _arguments: int, blocks: int, step: int) -> None:
        parts.append(-(-blocks // step))

    monkeypatch.setattr(Threads, "run", note)
    kernels = GeneratedKernels(BEST, threads)

    kernels.attend(heads, torch.randn(90, 6 * 16), fill(heads, 390, 400), 300, None)
    kernels.close()

    assert len(parts) == 1
    assert parts[0] >= threads


@every_path
def test_what_is_not_finite_shows(path: Path) -> None:
    heads, _ = CASES["plain"]
    cache, qkv = fill(heads, 30, 64), torch.randn(30, 8, 64)
    qkv[20, 1, 5] = math.nan

    out = GeneratedKernels(path).attend(heads, qkv.flatten(1), cache, 0, None).view(30, 4, 64)

    assert out[20, 1].isnan().all()
    assert out[:20].isfinite().all()
