"""Products with floats against float64, on every path that this processor has."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_paths import BEST, every_generated, every_kernels, random

from potluck.engine.kernels import Kernels
from potluck.engine.kernels.called.generated import GeneratedKernels

F32_ROUNDING = 2.0**-23

every_dtype = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
shapes = st.tuples(st.integers(1, 19), st.integers(1, 40), st.integers(1, 300))


@every_generated
@every_dtype
@settings(deadline=None, max_examples=25)
@given(shape=shapes, gap=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_a_product_in_f32_is_that_of_float64(
    kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int, int], gap: int, seed: int
) -> None:
    tokens, rows, width = shape
    x = random(tokens, width, seed=seed)
    weight = random(rows, width + gap, seed=seed + 1).to(dtype)[:, gap:]
    bias = random(rows, seed=seed + 2)

    y = kernels.multiply_plain(x, weight, bias)

    exact = x.double() @ weight.double().T + bias
    rounding = x.double().abs() @ weight.double().abs().T + bias.abs()
    assert y.shape == (tokens, rows)
    assert y.dtype == torch.float32
    assert ((y - exact).abs() <= (2 + width / 16) * F32_ROUNDING * rounding).all()


@every_kernels
@every_dtype
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [200, 5003])
def test_a_product_has_the_dtype_of_its_input(
    kernels: Kernels, dtype: torch.dtype, has_bias: bool, width: int
) -> None:
    x = random(3, width).to(dtype)
    weight = (random(33, width, seed=1) / width**0.5).to(dtype)
    bias = random(33, seed=2).to(dtype) if has_bias else None

    y = kernels.multiply_plain(x, weight, bias)

    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=2**-7, atol=2e-3)


@every_generated
@every_dtype
def test_tokens_do_not_depend_on_their_company(kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = random(11, 70), random(9, 70, seed=1).to(dtype)

    together = kernels.multiply_plain(x, weight, None)

    alone = torch.cat([kernels.multiply_plain(row[None], weight, None) for row in x])
    assert torch.equal(together, alone)


@every_generated
@every_dtype
@pytest.mark.parametrize("place", [0, 63, 64, 99])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_shows_in_its_row_alone(
    kernels: Kernels, dtype: torch.dtype, place: int, bad: float
) -> None:
    x, weight = torch.ones(2, 100), random(5, 100).to(dtype)
    weight[3, place] = bad

    y = kernels.multiply_plain(x, weight, None)

    torch.testing.assert_close(y[:, 3], torch.full((2,), bad), equal_nan=True)
    assert y[:, [0, 1, 2, 4]].isfinite().all()


@every_generated
@every_dtype
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_input_that_is_not_finite_shows_in_its_token_alone(
    kernels: Kernels, dtype: torch.dtype, bad: float
) -> None:
    x, weight = random(3, 100).to(dtype), random(5, 100, seed=1).to(dtype)
    x[1, 97] = bad

    y = kernels.multiply_plain(x, weight, None)

    assert not y[1].isfinite().any()
    assert y[[0, 2]].isfinite().all()


@every_generated
def test_what_f16_cannot_hold_is_infinite_and_what_it_can_is_exact(kernels: Kernels) -> None:
    weight = torch.tensor([[60000.0, 60000.0], [60000.0, -60000.0], [2.0**-24, 2.0**-14]]).half()

    y = kernels.multiply_plain(torch.ones(1, 2).half(), weight, None)
    wide = kernels.multiply_plain(torch.ones(1, 2), weight, None)

    assert y[0, :2].tolist() == [float("inf"), 0.0]
    assert wide.tolist() == [[120000.0, 0.0, 2.0**-24 + 2.0**-14]]


@every_generated
def test_every_f16_and_every_bf16_is_what_torch_takes_it_for(kernels: Kernels) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)

    for dtype in (torch.bfloat16, torch.float16):
        numbers = patterns.view(dtype)[:, None]
        y = kernels.multiply_plain(torch.ones(1, 1), numbers, None)

        # What is added to is a positive zero.
        expected = numbers.float().T + 0.0
        torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("tokens", [1, 9])
def test_threads_give_what_one_thread_gives(rows: int, tokens: int) -> None:
    one, many = GeneratedKernels(BEST), GeneratedKernels(BEST, 3)
    x, weight, bias = random(tokens, 90), random(rows, 90, seed=1).half(), random(rows, seed=2)
    alone = one.multiply_plain(x, weight, bias)

    for _ in range(50):  # of which some find the threads spinning, some half asleep
        assert torch.equal(many.multiply_plain(x, weight, bias), alone)

    many.close()
