"""Attention beside packed weights has the bits of the instruction for bf16 on every path, and costs little precision."""

from dataclasses import replace

import pytest
import torch
from kernel_paths import BEST, every_path
from torch import Tensor
from torch_layers import attend, make_cache, make_heads

from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.kernels.paths import Path

F16 = torch.float16
TOKENS = 300  # more than a panel
HEADS = [
    make_heads(8, 1, 64, 64, F16, has_pairs=True),
    make_heads(3, 1, 40, 0, F16, softcap=20.0, has_sinks=True, has_pairs=True),
    replace(make_heads(12, 1, 80, 16, F16, has_pairs=True), rank=64),
]


def cut_to_bf16(numbers: Tensor) -> Tensor:
    """Return f32 without the bits that bf16 does not have."""
    return (numbers.view(torch.int32) & -(1 << 16)).view(torch.float32)


def to_bf16(numbers: Tensor) -> Tensor:
    """Return f32 rounded to bf16, ties away from zero."""
    return cut_to_bf16((numbers.view(torch.int32) + (1 << 15)).view(torch.float32))


def inputs(heads: Heads, outlier: float = 1.0) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries of all tokens, a cache that nobody has rounded, and sinks."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(TOKENS, heads.row_numbers, generator=generator)
    cache = make_cache(heads, TOKENS, F16)[: 1 if heads.rank else 2]
    cache.copy_(torch.randn(cache.shape, generator=generator))
    rows[:, 3] *= outlier
    cache[0, :, :, 3] *= outlier / 10
    cache[-1, :, 7] *= outlier
    rows[5] *= 1e-20  # what is too small for a product is zero
    cache[-1, :, 9] *= 1e-7
    sinks = torch.zeros(heads.heads) if heads.has_sinks else None
    return rows, cache, sinks


@every_path
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("outlier", [1.0, 100.0])
def test_every_path_gives_the_same_bits_alone_and_in_a_chunk(
    path: Path, heads: Heads, outlier: float
) -> None:
    rows, cache, sinks = inputs(heads, outlier)
    expected = GeneratedKernels(BEST).attend(heads, rows, cache, 0, None, sinks=sinks)
    kernels = GeneratedKernels(path)

    chunk = kernels.attend(heads, rows, cache, 0, None, sinks=sinks)
    alone = kernels.attend(heads, rows[-1:], cache, TOKENS - 1, None, sinks=sinks)

    assert expected.isfinite().all()
    assert torch.equal(chunk, expected)
    assert torch.equal(alone, expected[-1:])


def test_a_score_is_the_sum_that_the_instruction_makes() -> None:
    """Computed by NumPy's rules: of each lane the upper product is added first, and each sum is rounded."""
    heads = make_heads(1, 1, 16, 0, F16, scale=1.0, has_pairs=True)
    rows = torch.randn(1, heads.row_numbers)
    cache = make_cache(heads, 2, F16)
    cache[0] = torch.randn(1, 2, 16)
    cache[1, :, 0], cache[1, :, 1] = 1.0, 0.0

    out = GeneratedKernels(BEST).attend(heads, rows, cache, 1, None)

    query, keys = to_bf16(rows[0, :16]), cut_to_bf16(cache[0, 0].float())
    products = query * keys  # exact
    lanes = products[:, 8:] + products[:, :8]  # rounded once, as the second of two sums
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    scores = lanes[:, 0].double()
    powers = to_bf16((scores - scores.max()).exp().float())
    assert out[0, 0] == pytest.approx((powers[0] / powers.sum()).item(), rel=1e-6)


@pytest.mark.parametrize("heads", HEADS[:2])
@pytest.mark.parametrize("outlier", [1.0, 30.0])
def test_rounding_to_bf16_is_as_coarse_as_it_says(heads: Heads, outlier: float) -> None:
    rows, cache, sinks = inputs(heads, outlier)
    cache = to_bf16(cache.float()).half()  # as it is written

    out = GeneratedKernels(BEST).attend(heads, rows[-1:], cache, TOKENS - 1, None, sinks=sinks)

    q = rows[-1, : heads.queries_size].view(heads.heads, -1)
    exact = attend(q, heads, cache, 0, TOKENS, sinks)
    size = (q.abs() @ cache[0, 0].float().abs().T).max() * heads.scale  # of the sums of a score
    assert (out.view_as(exact) - exact).norm() < exact.norm() * 2**-9 * (1 + size)


@every_path
def test_keys_and_values_are_cached_as_they_are_multiplied(path: Path) -> None:
    heads = make_heads(8, 2, 40, 0, F16, has_pairs=True)
    rows, cache = torch.randn(5, heads.row_numbers), make_cache(heads, 5, F16)
    kv = rows[:, heads.queries_size :].unflatten(1, (2, 2, 40)).permute(1, 2, 0, 3).contiguous()

    GeneratedKernels(path).rope_and_cache(heads, rows, cache, 0, None, None)

    assert torch.equal(cache, to_bf16(kv).half())
