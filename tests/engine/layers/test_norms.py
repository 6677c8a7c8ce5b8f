"""Norms are computed in 32 bits, over the heads or the projection that they are for."""

import torch

from potluck.engine.kernels import ReferenceKernels
from potluck.engine.layers.norms import (
    BiasedLayerNorm,
    HeadNorm,
    KernelNorm,
    ProjectionNorm,
    RmsNorm,
)


def test_a_norm_of_16_bits_is_computed_in_32() -> None:
    x = torch.full((1, 4), 300.0, dtype=torch.float16)  # the square of which f16 cannot hold

    assert RmsNorm(torch.ones(4), 1e-6)(x).tolist() == [[1.0] * 4]


def test_a_layer_norm_with_a_bias_is_that_of_torch_and_keeps_the_dtype() -> None:
    both, x = torch.randn(2, 6), 3 + torch.randn(2, 6)
    expected = torch.nn.functional.layer_norm(x, (6,), both[0], both[1], 1e-5)

    for norm in (
        BiasedLayerNorm(both, 1e-5),
        KernelNorm(both, 1e-5, ReferenceKernels(), "biased layer"),
    ):
        torch.testing.assert_close(norm(x), expected)
        assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_a_head_norm_gives_each_head_the_weights_of_its_kind() -> None:
    norm = HeadNorm(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (3, 2), eps=0.0)
    norm.spread()

    x = norm(torch.full((1, 5, 2), 7.0))

    assert x.tolist() == [[[1.0, 2.0]] * 3 + [[3.0, 4.0]] * 2]


def test_a_projection_norm_takes_all_queries_together_and_all_keys() -> None:
    norm = ProjectionNorm(torch.ones(6), (4, 2), eps=0.0)
    x = torch.tensor([[[3.0, 0.0], [0.0, 0.0], [5.0, 5.0]]])  # two query heads, one key head

    # The root mean square of the queries is 1.5, that of the keys 5.
    assert norm(x).tolist() == [[[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]]
