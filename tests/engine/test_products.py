"""Every way of multiplying gives the product; which one is taken is a matter of time alone."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine import products as products_module
from potluck.engine.kernels import best_kernels
from potluck.engine.products import (
    Product,
    Products,
    fastest_products,
    linear_in_parts,
    linear_widened,
)

CPU = torch.device("cpu")
GENERATED = best_kernels().multiply_plain
ONE_ROW = [F.linear, partial(linear_in_parts, large=0)]
MANY_ROWS = [F.linear, linear_widened]


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
@pytest.mark.parametrize(
    ("way", "rows"), [(way, 1) for way in ONE_ROW] + [(way, 19) for way in MANY_ROWS]
)
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


def test_one_row_a_few_and_many_go_their_own_ways() -> None:
    asked: list[str] = []

    def way(name: str) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            asked.append(name)
            return x @ weight.T

        return multiply

    products = Products(one=way("one"), few=way("few"), many=way("many"))

    for rows in (1, 2, 15, 16, 100):
        products(torch.ones(rows, 4), torch.ones(3, 4), None)

    assert asked == ["one", "few", "few", "many", "many"]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nbytes", [0, 1 << 20])
def test_what_is_chosen_multiplies(dtype: torch.dtype, nbytes: int) -> None:
    products = fastest_products(dtype, CPU, nbytes, GENERATED)

    for rows in (1, 9, 40):
        x, weight = torch.ones((rows, 8), dtype=dtype), torch.ones((24, 8), dtype=dtype)
        assert products(x, weight, None).tolist() == [[8.0] * 24] * rows


@pytest.mark.parametrize("quick", range(2))
def test_the_way_whose_parts_are_the_quickest_is_chosen(
    monkeypatch: pytest.MonkeyPatch, quick: int
) -> None:
    parts = 3
    runs: list[Product] = []
    order = [F.linear, GENERATED]

    def seconds(way: Product, _x: Tensor, weight: Tensor) -> float:
        if way is linear_widened:
            return 11.0
        assert weight.shape[0] == 2
        part, run = len(runs) % parts, len(runs) // parts // len(order)
        runs.append(way)
        # Each run is held up in one of its parts, but not in the same one every time.
        return (10.0 if order.index(way) == quick else 11.0) + 100 * (part == run % parts)

    monkeypatch.setattr(products_module, "_seconds", seconds)
    bf16_row = 2 * products_module._TRIAL_WIDTH  # pyright: ignore[reportPrivateUsage]

    products = fastest_products(torch.bfloat16, CPU, 2 * parts * bf16_row, GENERATED, trial_rows=2)

    chosen: list[Product] = [products._one]  # pyright: ignore[reportPrivateUsage]
    assert chosen == [order[quick]]
