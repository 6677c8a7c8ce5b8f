"""Packed matrices that are placed on a device multiply with the values of the packed bytes."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_forms import CpuForm, TorchForm

from potluck.engine.accelerator.linears import BlockLinear, Int4Linear, PlacedLinear
from potluck.engine.kernels import PackedWeight, ReferenceKernels
from potluck.model.formats import INT4, INT4_OFFSET, INT8, PACKED_FORMATS, PackedFormat

CPU = torch.device("cpu")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 0.01}


def blocks(weight: PackedWeight, bias: Tensor | None, dtype: torch.dtype) -> PlacedLinear:
    return BlockLinear(weight, bias, dtype=dtype, device=CPU)


def operator(weight: PackedWeight, bias: Tensor | None, dtype: torch.dtype) -> PlacedLinear:
    """Make a matrix that torch's own int4 product multiplies, on a CPU."""
    form = CpuForm()
    return Int4Linear(weight, bias, dtype=dtype, device=CPU, form=form, many_by_operator=True)


def unpacked(weight: PackedWeight, bias: Tensor | None, dtype: torch.dtype) -> PlacedLinear:
    """Make a matrix that is unpacked for many rows of inputs."""
    form = TorchForm()
    return Int4Linear(weight, bias, dtype=dtype, device=CPU, form=form, many_by_operator=False)


Make = Callable[[PackedWeight, Tensor | None, torch.dtype], PlacedLinear]
every_way = pytest.mark.parametrize("make", [blocks, operator, unpacked])
every_way_and_format = pytest.mark.parametrize(
    ("make", "weight_format"),
    [
        pytest.param(make, held, id=f"{held.name}-{make.__name__}")
        for held in PACKED_FORMATS
        for make in (blocks, operator, unpacked)
        if make is blocks or held.codes is None  # torch's product has no codes
    ],
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@every_way_and_format
@settings(deadline=None, max_examples=15)
@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 200)),
    tokens=st.sampled_from([1, 3, 50]),
    dtype=st.sampled_from(list(TOLERANCES)),
    has_bias=st.booleans(),
)
def test_a_product_is_that_of_the_packed_numbers(
    make: Make,
    weight_format: PackedFormat,
    shape: tuple[int, int],
    tokens: int,
    dtype: torch.dtype,
    has_bias: bool,
) -> None:
    packed = ReferenceKernels().pack(random(*shape), weight_format)
    bias = random(shape[0], seed=1).to(dtype) if has_bias else None
    x = random(tokens, shape[1], seed=2).to(dtype)
    linear = make(packed, bias, dtype)

    linear.place()
    y = linear(x)

    expected = x.float() @ packed.dequantise().t()
    scale = (x.float().abs() @ packed.dequantise().t().abs()).max()
    assert y.shape == (tokens, shape[0])
    assert y.dtype == dtype
    if bias is not None:
        expected, scale = expected + bias.float(), scale + bias.float().abs().max()
    assert ((y.float() - expected).abs().max() / scale).item() < TOLERANCES[dtype]


@every_way_and_format
def test_more_rows_than_are_converted_at_once_are_all_there(
    make: Make, weight_format: PackedFormat
) -> None:
    packed = ReferenceKernels().pack(random(2070, 32), weight_format)
    linear = make(packed, None, torch.float32)
    linear.place()
    x = random(2, 32, seed=1)

    assert torch.allclose(linear(x), x @ packed.dequantise().t(), atol=1e-4)


@every_way
def test_packed_bytes_that_come_after_it_was_made_are_placed_and_let_go(make: Make) -> None:
    kernels, weight = ReferenceKernels(), random(32, 64)
    packed = PackedWeight.empty(32, 64, INT4)
    linear = make(packed, None, torch.float32)
    nbytes = linear.nbytes

    kernels.pack_rows(packed, 0, weight)
    linear.place()
    expected = packed.dequantise()
    packed.data.zero_()

    x = random(1, 64, seed=1)
    assert torch.allclose(linear(x), x @ expected.t(), atol=1e-4)
    assert linear.nbytes == nbytes


def test_what_a_matrix_takes_is_known() -> None:
    packed = [ReferenceKernels().pack(random(64, 256), held) for held in (INT4, INT4_OFFSET, INT8)]

    by_blocks = [blocks(weight, None, torch.bfloat16).nbytes for weight in packed]
    by_operator = [operator(weight, None, torch.bfloat16).nbytes for weight in packed]

    weights = 64 * 256
    assert by_blocks == [weight.nbytes for weight in packed]
    assert by_operator == [0.625 * weights, 0.625 * weights, 1.25 * weights]


def test_few_rows_go_to_the_operator_and_many_are_multiplied_with_unpacked_weights() -> None:
    form = TorchForm()
    packed = ReferenceKernels().pack(random(32, 64), INT4)
    linear = Int4Linear(
        packed, None, dtype=torch.float32, device=CPU, form=form, many_by_operator=False
    )
    linear.place()

    products = []
    for tokens in (1, 31, 32, 100):
        linear(random(tokens, 64))
        products.append(form.products)

    assert products == [1, 2, 2, 2]


def test_numbers_in_other_memory_orders_are_multiplied_too() -> None:
    packed = ReferenceKernels().pack(random(32, 64), INT8)
    linear = operator(packed, None, torch.float32)
    linear.place()
    x = random(64, 3).t()

    assert torch.allclose(linear(x), x @ packed.dequantise().t(), atol=1e-4)
