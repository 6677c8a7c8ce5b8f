"""A token goes through the experts that its router chose, and through no others."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from largest_tensor import LargestTensor
from torch import Tensor

from potluck.engine.kernels import Router, best_kernels
from potluck.engine.layers.linear import FloatLinear, PackedLinear
from potluck.engine.layers.mlp import GatedMlp, MoE, PackedMlp
from potluck.engine.layers.products import Products
from potluck.model.families.facts import Activation, GateFunction
from potluck.model.formats import INT8
from potluck.model.routing import Routing

D, SIZE, COUNT = 6, 4, 5


class CountingMlp(GatedMlp):
    """Remembers how many tokens it was given."""

    __slots__ = ("tokens",)

    def __init__(self, generator: torch.Generator) -> None:
        gate_up = torch.randn(2 * SIZE, D, generator=generator).bfloat16().float()
        down = torch.randn(D, SIZE, generator=generator).bfloat16().float()
        super().__init__(
            FloatLinear(gate_up, None, Products()), FloatLinear(down, None, Products()), "silu"
        )
        self.tokens = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.tokens += len(x)
        return super().__call__(x)


def mixture(*, per_token: int = 2, normalise: bool = True) -> tuple[MoE, list[CountingMlp]]:
    generator = torch.Generator().manual_seed(1)
    experts = [CountingMlp(generator) for _ in range(COUNT)]
    router = torch.randn(COUNT, D, generator=generator)
    routing = Routing(count=COUNT, per_token=per_token, normalise=normalise)
    return MoE(Router(router, None, routing), experts), experts


def by_definition(mix: MoE, x: Tensor, per_token: int, normalise: bool) -> Tensor:
    """Compute all experts, and weigh those that were not chosen with 0."""
    probabilities = (x @ mix.router.matrix.T).softmax(-1)
    threshold = probabilities.sort(-1, descending=True).values[:, per_token - 1 : per_token]
    weights = torch.where(probabilities >= threshold, probabilities, 0.0)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    outputs = torch.stack([expert(x) for expert in mix.experts], 1)  # (T, E, D)
    return (weights[..., None] * outputs).sum(1)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("per_token", [1, 2, COUNT])
@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_a_mixture_is_the_weighted_sum_of_the_chosen(
    tokens: int, per_token: int, normalise: bool
) -> None:
    mix, _ = mixture(per_token=per_token, normalise=normalise)
    x = torch.randn(tokens, D)

    torch.testing.assert_close(mix(x), by_definition(mix, x, per_token, normalise))


@pytest.mark.parametrize("tokens", [1, 7])
def test_only_chosen_experts_are_computed(tokens: int) -> None:
    mix, experts = mixture()
    x = torch.randn(1, D).expand(tokens, D)  # all choose the same two

    mix(x)

    assert sorted(expert.tokens for expert in experts) == [0, 0, 0, tokens, tokens]


def test_the_input_is_not_changed() -> None:
    mix, _ = mixture()
    for tokens in (1, 5):
        x = torch.randn(tokens, D)
        before = x.clone()

        mix(x)

        assert torch.equal(x, before)


def test_16_bits_are_routed_and_added_up_in_32() -> None:
    mix, experts = mixture()
    x = torch.randn(4, D).bfloat16()
    expected = mix(x.float())
    for expert in experts:
        for linear in (expert.gate_up, expert.down):
            assert isinstance(linear, FloatLinear)
            linear.weight = linear.weight.bfloat16()

    y = mix(x)

    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)


def test_a_gated_mlp_uses_its_activation() -> None:
    up = torch.eye(1).repeat(2, 1)
    x = torch.tensor([[2.0]])

    functions: dict[GateFunction, Callable[[Tensor], Tensor]] = {
        "silu": F.silu,
        "gelu_pytorch_tanh": _gelu,
    }
    for name, function in functions.items():
        mlp = GatedMlp(
            FloatLinear(up, None, Products()), FloatLinear(torch.eye(1), None, Products()), name
        )
        assert mlp(x).item() == pytest.approx(function(x).item() * 2)


def test_an_mlp_without_gates_squares_or_bends_its_ups() -> None:
    def of(name: Activation, x: float) -> float:
        one = FloatLinear(torch.eye(1), None, Products())
        learned = torch.tensor([0.7, 0.9]) if name == "xielu" else None
        return GatedMlp(one, one, name, learned=learned)(torch.tensor([[x]])).item()

    assert of("relu2", 3.0) == 9.0
    assert of("relu2", -3.0) == 0.0
    assert of("xielu", 2.0) == pytest.approx(0.7 * 4 + 1)
    assert of("xielu", -2.0) == pytest.approx(0.9 * (math.exp(-2) - 1 + 2) - 1, abs=1e-6)


def packed_mlp(width: int, size: int, biases: bool) -> PackedMlp:
    kernels = best_kernels()

    def linear(rows: int, columns: int) -> PackedLinear:
        bias = torch.randn(rows) if biases else None
        return PackedLinear(kernels.pack(torch.randn(rows, columns) / 8, INT8), bias, kernels)

    return PackedMlp(linear(2 * size, width), linear(width, size), "silu")


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 200])
def test_many_tokens_go_through_a_packed_mlp_as_one_by_one(tokens: int, biases: bool) -> None:
    mlp = packed_mlp(64, 96, biases)
    x = torch.randn(tokens, 64)

    y = mlp(x)

    one_by_one = torch.cat([mlp(one) for one in x.split(1)])
    torch.testing.assert_close(y, one_by_one, rtol=1e-5, atol=1e-4)


def test_a_packed_mlp_holds_the_gates_of_few_tokens_at_a_time() -> None:
    mlp = packed_mlp(64, 1024, biases=False)
    x = torch.randn(512, 64)

    with LargestTensor() as largest:
        mlp(x)

    assert largest.nbytes <= 4 * 64 * 2048


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_factors_of_what_experts_read_are_summed_in_32_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)

    def matrix(rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=generator).to(dtype)

    experts = [
        GatedMlp(
            FloatLinear(matrix(2 * SIZE, D), None, Products()),
            FloatLinear(matrix(D, SIZE), None, Products()),
            "silu",
        )
        for _ in range(COUNT)
    ]
    routing = Routing(
        count=COUNT, per_token=1, normalise=False, function="sigmoid", scales_input=True
    )
    mix = MoE(Router(matrix(COUNT, D).float(), None, routing), experts)
    x = matrix(7, D)

    products = x.float() @ mix.router.matrix.T
    factors, chosen = products.sigmoid().gather(1, products.argmax(1)[:, None]), products.argmax(1)
    expected = torch.cat(
        [
            experts[index]((row * factor).to(dtype)[None])
            for index, row, factor in zip(chosen.tolist(), x, factors, strict=True)
        ]
    )
    y = mix(x)

    assert y.dtype == dtype
    torch.testing.assert_close(y, expected)
