"""Every way of multiplying gives the product; which one is taken, the processor and the rows decide."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.kernels import Kernels, ReferenceKernels, best_kernels
from potluck.engine.layers.products import (
    Product,
    Products,
    choose_products,
    linear_widened,
)

CPU = torch.device("cpu")
KERNELS = best_kernels()


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-2


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (64, 33), (1030, 48)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize("way", [F.linear, KERNELS.multiply_plain, linear_widened])
def test_every_way_gives_the_product(
    way: Product, rows: int, has_bias: bool, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = torch.randn(rows, shape[1]).to(dtype)
    weight = torch.randn(shape).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if has_bias else None

    product = way(x, weight, bias)

    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert product.shape == (rows, shape[0])
    assert product.dtype == dtype
    scale = exact.abs().max()
    assert (product.double() - exact).abs().max() / scale < tolerance(dtype)


def test_a_few_rows_and_many_go_their_own_ways() -> None:
    asked: list[str] = []

    def way(name: str) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            asked.append(name)
            return x @ weight.T

        return multiply

    products = Products(few=way("few"), many=way("many"), most=3)

    for rows in (1, 3, 4, 100):
        products(torch.ones(rows, 4), torch.ones(3, 4), None)

    assert asked == ["few", "few", "many", "many"]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "kernels", [None, ReferenceKernels(), KERNELS], ids=["none", "reference", "generated"]
)
def test_what_is_chosen_multiplies(dtype: torch.dtype, kernels: Kernels | None) -> None:
    products = choose_products(dtype, CPU, kernels)

    for rows in (1, 9, 40):
        x, weight = torch.ones((rows, 8), dtype=dtype), torch.ones((24, 8), dtype=dtype)
        assert products(x, weight, None).tolist() == [[8.0] * 24] * rows


@pytest.mark.parametrize("has_arithmetic", [True, False])
def test_many_rows_are_widened_where_the_processor_cannot_multiply_16_bits(
    monkeypatch: pytest.MonkeyPatch, has_arithmetic: bool
) -> None:
    features = {"avx512bf16"} if has_arithmetic else {"avx512fp16"}
    monkeypatch.setattr("potluck.engine.kernels.called.generated.host_features", lambda: features)
    x, weight = torch.randn(40, 96).bfloat16(), torch.randn(600, 96).bfloat16()

    product = choose_products(torch.bfloat16, CPU, KERNELS)(x, weight, None)

    way = F.linear if has_arithmetic else linear_widened
    assert torch.equal(product, way(x, weight, None))


def test_a_row_of_f32_has_the_bits_that_it_has_alone_among_any_number() -> None:
    products = choose_products(torch.float32, CPU, KERNELS)
    x, weight = torch.randn(40, 333), torch.randn(50, 333)

    assert torch.equal(products(x, weight, None)[20:21], products(x[20:21], weight, None))


def test_a_row_of_a_few_has_the_bits_that_it_has_alone() -> None:
    products = choose_products(torch.bfloat16, CPU, KERNELS)
    x, weight = torch.randn(4, 333).bfloat16(), torch.randn(50, 333).bfloat16()

    assert torch.equal(products(x, weight, None)[2:3], products(x[2:3], weight, None))
