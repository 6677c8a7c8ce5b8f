"""Every path's products against float64, on shapes of all kinds; paths that this processor has run."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_paths import REFERENCE, every_kernels, random
from torch import Tensor
from weight_formats import every_format

from potluck.engine.kernels import Kernels
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER, INT8, PackedFormat

F32_ROUNDING = 2.0**-23

shapes = st.tuples(st.integers(1, 21), st.integers(1, 70), st.integers(1, 200))


def exact(
    kernels: Kernels, x: Tensor, weight: Tensor, weight_format: PackedFormat
) -> tuple[Tensor, Tensor]:
    """The product of what is stored in float64, and how far rounding of f32 may take it."""
    values = kernels.quantise(x).dequantise().double()
    weights = kernels.pack(weight, weight_format).dequantise().double()
    sizes = weights.abs()
    if (
        weight_format.has_offsets
    ):  # what offsets are subtracted from is larger: at most the range of a group
        groups = F.pad(weights, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
        ranges = groups.abs().amax(-1, keepdim=True).expand(groups.shape)
        sizes = 4 * ranges.flatten(1)[:, : x.shape[1]]
    additions = 4 + x.shape[1] / 32
    return values @ weights.T, additions * F32_ROUNDING * (values.abs() @ sizes.T)


@every_kernels
@every_format
@settings(deadline=None, max_examples=25)
@given(shape=shapes, seed=st.integers(0, 2**32))
def test_a_product_is_that_of_the_stored_numbers(
    kernels: Kernels, weight_format: PackedFormat, shape: tuple[int, int, int], seed: int
) -> None:
    tokens, rows, width = shape
    x, weight = random(tokens, width, seed=seed), random(rows, width, seed=seed + 1)

    y = kernels.multiply(kernels.pack(weight, weight_format), kernels.quantise(x))

    product, rounding = exact(kernels, x, weight, weight_format)
    assert y.shape == (tokens, rows)
    assert ((y.double() - product).abs() <= rounding).all()


@every_kernels
@pytest.mark.parametrize(
    ("weight_format", "error"),
    [(INT4, 0.095), (INT4_OFFSET, 0.085), (INT4_SUPER, 0.085), (INT8, 0.01)],
)
def test_a_product_is_close_to_that_of_the_weights(
    kernels: Kernels, weight_format: PackedFormat, error: float
) -> None:
    x, weight = random(9, 512), random(100, 512, seed=1)

    y = kernels.multiply(kernels.pack(weight, weight_format), kernels.quantise(x))

    product = x.double() @ weight.double().T
    assert (y - product).norm() / product.norm() < error


@every_kernels
@every_format
@pytest.mark.parametrize("tokens", [1, 7, 8, 128, 129, 139])
def test_tokens_do_not_depend_on_their_company(
    kernels: Kernels, weight_format: PackedFormat, tokens: int
) -> None:
    x, packed = random(tokens, 96), kernels.pack(random(33, 96, seed=1), weight_format)

    together = kernels.multiply(packed, kernels.quantise(x))

    alone = [kernels.multiply(packed, kernels.quantise(row[None])) for row in x]
    # torch adds in an order of its own, which depends on the shape.
    tolerance = 1e-5 if kernels is REFERENCE else 0
    torch.testing.assert_close(together, torch.cat(alone), rtol=tolerance, atol=tolerance)


@every_kernels
@every_format
def test_products_can_be_added_to_a_residual(kernels: Kernels, weight_format: PackedFormat) -> None:
    x, weight, residual = random(3, 64), random(20, 64, seed=1), random(3, 20, seed=2)
    packed, quantised = kernels.pack(weight, weight_format), kernels.quantise(x)
    out = residual.clone()

    added = kernels.multiply(packed, quantised, out=out, addend=out)

    product, _ = exact(kernels, x, weight, weight_format)
    assert added is out
    torch.testing.assert_close(added.double(), product + residual, rtol=1e-5, atol=1e-5)


@every_kernels
@every_format
def test_a_bias_is_added_to_every_token(kernels: Kernels, weight_format: PackedFormat) -> None:
    x, bias = random(11, 64), random(35, seed=2)
    packed, quantised = kernels.pack(random(35, 64, seed=1), weight_format), kernels.quantise(x)

    added = kernels.multiply(packed, quantised, addend=bias)

    whole = kernels.multiply(packed, quantised, addend=bias.expand(11, 35))
    assert torch.equal(added, whole)
    product = kernels.multiply(packed, quantised).double() + bias
    torch.testing.assert_close(added.double(), product, rtol=1e-6, atol=1e-6)


@every_kernels
@every_format
def test_a_product_writes_nothing_beyond_its_output(
    kernels: Kernels, weight_format: PackedFormat
) -> None:
    memory = torch.full((5 * 17 + 40,), 7.0)
    out = memory[20:-20].view(5, 17)

    kernels.multiply(
        kernels.pack(random(17, 40), weight_format), kernels.quantise(random(5, 40)), out=out
    )

    assert (memory[:20] == 7).all()
    assert (memory[-20:] == 7).all()
    assert (out != 7).all()


@every_kernels
@every_format
def test_the_largest_integers_do_not_overflow(
    kernels: Kernels, weight_format: PackedFormat
) -> None:
    signs = torch.ones(64)
    signs[::2] = -1

    for x, weight in ((torch.ones(64), torch.ones(64)), (signs, signs), (-signs, signs)):
        x, weight = 3.0 * x.repeat(9, 1), 6.0 * weight.repeat(16, 1)
        y = kernels.multiply(kernels.pack(weight, weight_format), kernels.quantise(x))

        torch.testing.assert_close(y, x @ weight.T, rtol=2e-3, atol=0)


@every_kernels
@every_format
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_input_that_is_not_finite_shows_in_its_token_alone(
    kernels: Kernels, weight_format: PackedFormat, bad: float
) -> None:
    x = random(10, 70)
    x[3, 50] = bad

    y = kernels.multiply(kernels.pack(random(20, 70, seed=1), weight_format), kernels.quantise(x))

    assert not y[3].isfinite().any()
    y[3] = 0
    assert y.isfinite().all()


@every_kernels
@every_format
def test_zeros_and_outliers(kernels: Kernels, weight_format: PackedFormat) -> None:
    x, weight = random(4, 128), random(20, 128, seed=1)
    x[0], x[1, 32:64], x[2, 5] = 0, 0, 1e6
    weight[0], weight[1, :32], weight[2, 7], weight[3] = 0, 0, 1e4, 1e-37

    y = kernels.multiply(kernels.pack(weight, weight_format), kernels.quantise(x))

    product, rounding = exact(kernels, x, weight, weight_format)
    assert ((y.double() - product).abs() <= rounding).all()
    assert (y[0] == 0).all()
    assert (y[:, [0, 3]] == 0).all()
    assert abs(y[3, 2] - product[3, 2]) < 1e-3 * abs(product[3, 2])
