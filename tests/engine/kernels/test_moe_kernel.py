"""A token goes through the experts that its router scores highest, each times its factor."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch_layers import EPSILON, make_angles, make_cache, make_heads, random_layer, run_layer

from potluck.engine.kernels import ReferenceKernels
from potluck.engine.kernels.decode import Decoder, LayerWeights, layer_shape
from potluck.engine.kernels.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.layer_kernel import LayerShape
from potluck.engine.kernels.moe_kernel import MoeShape
from potluck.model.formats import INT8

HIDDEN, INTERMEDIATE = 32, 16
KERNELS = GeneratedKernels(host_paths()[0])
HEADS = make_heads(2, 1, 16, 16, torch.float32)


def make_layer(count: int, per_token: int, *, normalise: bool) -> tuple[LayerWeights, LayerShape]:
    moe = MoeShape(count=count, per_token=per_token, normalise=normalise)
    layer = random_layer(KERNELS, HEADS, HIDDEN, INTERMEDIATE, (INT8,) * 4, moe=moe)
    return layer, layer_shape(layer, HEADS, epsilon=EPSILON)


def with_router(layer: LayerWeights, router: Tensor) -> LayerWeights:
    assert layer.moe is not None
    return replace(layer, moe=replace(layer.moe, router=router))


def run(layer: LayerWeights, shape: LayerShape, token: Tensor) -> Tensor:
    hidden, cache = token.clone(), make_cache(HEADS, 8, torch.float32)
    Decoder(KERNELS, [layer], shape)(hidden, [cache], 0, [make_angles(HEADS, 0)])
    return hidden


def expected(layer: LayerWeights, shape: LayerShape, token: Tensor) -> Tensor:
    cache, angles = make_cache(HEADS, 8, torch.float32), [make_angles(HEADS, 0)]
    return run_layer(ReferenceKernels(), layer, shape, token, cache, 0, angles)


@pytest.mark.parametrize(
    ("count", "per_token", "normalise"),
    [
        (1, 1, True),
        (4, 2, False),
        (16, 16, True),
        (17, 3, False),
        (64, 8, True),
    ],
)
def test_the_highest_are_chosen_and_weighed(count: int, per_token: int, normalise: bool) -> None:
    layer, shape = make_layer(count, per_token, normalise=normalise)

    for token in torch.randn(6, 1, HIDDEN):
        y, wanted = run(layer, shape, token), expected(layer, shape, token)
        assert (y - wanted).norm() < 0.02 * wanted.norm()


def test_of_equal_experts_the_first_is_chosen() -> None:
    layer, shape = make_layer(5, 1, normalise=True)
    scores = torch.randn(1, HIDDEN)
    token = torch.randn(1, HIDDEN)
    alike = with_router(layer, scores.repeat(5, 1).contiguous())

    assert layer.moe is not None
    first = replace(layer.moe, router=scores, experts=layer.moe.experts[:1])
    alone = replace(layer, moe=first)
    assert torch.equal(run(alike, shape, token), run(alone, replace(shape, moe=first.shape), token))


def test_scores_however_large_choose_one_expert() -> None:
    layer, shape = make_layer(4, 2, normalise=True)
    assert layer.moe is not None
    large = with_router(layer, layer.moe.router * 1e6)

    for token in torch.randn(4, 1, HIDDEN):
        y, wanted = run(large, shape, token), expected(large, shape, token)
        assert y.isfinite().all()
        assert (y - wanted).norm() < 0.02 * wanted.norm()


def test_a_token_that_is_not_a_number_shows() -> None:
    layer, shape = make_layer(6, 2, normalise=True)
    token = torch.randn(1, HIDDEN)
    token[0, 3] = float("nan")

    assert not run(layer, shape, token).isfinite().any()


def test_a_router_that_is_not_a_number_shows() -> None:
    layer, shape = make_layer(6, 2, normalise=False)
    broken = with_router(layer, torch.full((6, HIDDEN), float("nan")))

    assert not run(broken, shape, torch.randn(1, HIDDEN)).isfinite().any()
