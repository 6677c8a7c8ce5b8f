"""Generated experts are the experts, for one token and for many."""

import pytest
import torch

from potluck.engine.generated_experts import GeneratedExperts, generated_experts
from potluck.engine.kernels.generated import GeneratedKernels, host_paths
from potluck.engine.linear import JoinedLinear, PackedLinear
from potluck.engine.mlp import Experts, PackedMlp

HIDDEN, INTERMEDIATE, COUNT = 64, 48, 6
KERNELS = GeneratedKernels(host_paths()[0])


def packed(rows: int, width: int) -> PackedLinear:
    return PackedLinear(KERNELS.pack(torch.randn(rows, width), 8), None, KERNELS)


def make_experts(*, per_token: int = 3) -> Experts:
    mlps = [
        PackedMlp(packed(2 * INTERMEDIATE, HIDDEN), packed(HIDDEN, INTERMEDIATE), "silu")
        for _ in range(COUNT)
    ]
    router = torch.randn(COUNT, HIDDEN)
    return Experts(router, mlps, per_token=per_token, normalise=True)


@pytest.mark.parametrize("per_token", [1, 3, COUNT])
@pytest.mark.parametrize("tokens", [1, 5])
def test_the_sum_is_that_of_the_experts(tokens: int, per_token: int) -> None:
    experts = make_experts(per_token=per_token)
    x = torch.randn(tokens, HIDDEN)

    generated = generated_experts(experts)

    assert isinstance(generated, GeneratedExperts)
    assert generated.nbytes == experts.nbytes
    torch.testing.assert_close(generated(x), experts(x), rtol=1e-4, atol=1e-4)


def test_matrices_in_two_pieces_are_left_as_they_are() -> None:
    parts = [packed(INTERMEDIATE, HIDDEN), packed(INTERMEDIATE, HIDDEN)]
    mlp = PackedMlp(JoinedLinear(parts), packed(HIDDEN, INTERMEDIATE), "silu")
    experts = Experts(torch.randn(1, HIDDEN), [mlp], per_token=1, normalise=True)

    assert generated_experts(experts) is experts
