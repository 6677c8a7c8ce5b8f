"""A token through generated experts is the sum of what each makes of it."""

import pytest
import torch

from potluck.engine.kernels import ReferenceKernels
from potluck.engine.kernels.experts import Expert, ExpertsDecoder
from potluck.engine.kernels.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.paths import Path
from potluck.model.config import Activation

HIDDEN, INTERMEDIATE = 80, 48


def make_experts(kernels: GeneratedKernels, count: int, bits: tuple[int, int]) -> list[Expert]:
    return [
        (
            kernels.pack(torch.randn(2 * INTERMEDIATE, HIDDEN), bits[0]),
            kernels.pack(torch.randn(HIDDEN, INTERMEDIATE), bits[1]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("path", host_paths(), ids=lambda path: path.name)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("bits", "activation"),
    [((4, 4), "silu"), ((8, 4), "gelu_pytorch_tanh"), ((5, 8), "silu")],
    ids=str,
)
def test_experts_are_added_up(
    path: Path, threads: int, bits: tuple[int, int], activation: Activation
) -> None:
    kernels, plain = GeneratedKernels(path, threads), ReferenceKernels()
    experts = make_experts(kernels, 5, bits)
    decoder = ExpertsDecoder(kernels, experts, activation)

    for chosen, weights in (
        ([3, 1], [0.7, 0.3]),
        ([4], [1.5]),
        ([0, 1, 2, 4], [0.1, 0.2, 0.3, 0.4]),
    ):
        x = torch.randn(1, HIDDEN)
        out = decoder(x, chosen, weights)

        expected = torch.zeros(1, HIDDEN)
        for expert, weight in zip(chosen, weights, strict=True):
            gate_up, down = experts[expert]
            gates = plain.multiply(gate_up, plain.quantise(x))
            gated = plain.quantise_gated(gates, activation)
            expected += weight * plain.multiply(down, gated)
        # A rounding that falls to the other side is a step of 1/127 in the last product.
        assert (out - expected).norm() < 0.01 * expected.norm()
    kernels.close()


def test_a_token_that_is_not_a_number_shows() -> None:
    kernels = GeneratedKernels(host_paths()[0])
    decoder = ExpertsDecoder(kernels, make_experts(kernels, 2, (4, 4)), "silu")
    x = torch.randn(1, HIDDEN)
    x[0, 3] = float("nan")

    assert not decoder(x, [1], [0.5]).isfinite().any()
