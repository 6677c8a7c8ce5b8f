"""A token goes through the experts that its router scores highest, each times its factor."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_layers import EPSILON, make_angles, make_cache, make_heads, random_layer, run_layer

from potluck.engine.kernels import ReferenceKernels, Router
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.kernels.decoding.decode import Decoder
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.kernels.decoding.layer_weights import LayerWeights, Moe, layer_shape
from potluck.engine.layers.mlp import route
from potluck.model.formats import INT8
from potluck.model.routing import Routing, ScoreFunction

HIDDEN, INTERMEDIATE = 32, 16
KERNELS = GeneratedKernels(host_paths()[0])
HEADS = make_heads(2, 1, 16, 16, torch.float32)


def make_layer(
    count: int, per_token: int, *, shared: int = 0, **routing: Any
) -> tuple[LayerWeights, LayerShape]:
    moe = Routing(count=count, per_token=per_token, **routing)
    formats = (INT8,) * 4
    layer = random_layer(KERNELS, HEADS, HIDDEN, INTERMEDIATE, formats, moe=moe, shared=shared)
    return layer, layer_shape(layer, HEADS, epsilon=EPSILON)


def with_router(layer: LayerWeights, router: Tensor) -> LayerWeights:
    assert layer.moe is not None
    one = replace(layer.moe.router, matrix=router)
    return replace(layer, moe=replace(layer.moe, router=one))


def run(layer: LayerWeights, shape: LayerShape, token: Tensor) -> Tensor:
    hidden, cache = token.clone(), make_cache(HEADS, 8, torch.float32)
    Decoder(KERNELS, [layer], shape)(hidden, [cache], 0, [make_angles(HEADS, 0)])
    return hidden


def expected(layer: LayerWeights, shape: LayerShape, token: Tensor) -> Tensor:
    cache, angles = make_cache(HEADS, 8, torch.float32), [make_angles(HEADS, 0)]
    return run_layer(ReferenceKernels(), layer, shape, token, cache, 0, angles)


@pytest.mark.parametrize(
    ("count", "per_token", "shared", "routing"),
    [
        (1, 1, "no shared expert", {"normalise": True}),
        (4, 2, "shared", {"normalise": False}),
        (16, 16, "weighed", {"normalise": True}),
        (17, 3, "no shared expert", {"normalise": False}),
        (64, 8, "shared", {"normalise": True}),
        (17, 3, "weighed", {"normalise": True, "has_bias": True}),
        (
            64,
            8,
            "no shared expert",
            {"normalise": True, "function": "sigmoid", "has_bias": True, "scale": 2.5},
        ),
        (5, 2, "weighed", {"normalise": False, "function": "sigmoid", "scale": 0.5}),
        (
            24,
            4,
            "shared",
            {
                "normalise": True,
                "function": "sigmoid",
                "has_bias": True,
                "groups": 6,
                "groups_per_token": 2,
            },
        ),
    ],
    ids=str,
)
def test_the_chosen_experts_are_weighed_and_added(
    count: int, per_token: int, shared: str, routing: dict[str, Any]
) -> None:
    """How experts are chosen, and what all tokens go through, are written apart."""
    layer, shape = make_layer(
        count,
        per_token,
        shared=0 if shared == "no shared expert" else 48,
        has_shared_gate=shared == "weighed",
        **routing,
    )

    for token in torch.randn(6, 1, HIDDEN):
        y, wanted = run(layer, shape, token), expected(layer, shape, token)
        assert (y - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("groups", "best"), [(1, 1), (6, 2), (12, 12), (3, 1)])
def test_the_kernel_chooses_and_weighs_as_torch_does(
    function: ScoreFunction, has_bias: bool, groups: int, best: int
) -> None:
    routing = Routing(
        count=24,
        per_token=3,
        normalise=True,
        function=function,
        has_bias=has_bias,
        groups=groups,
        groups_per_token=best,
        scale=1.7,
        has_shared_gate=True,
    )
    router = Router(torch.randn(25, HIDDEN), torch.randn(24) if has_bias else None, routing)
    x = torch.randn(40, HIDDEN)

    factors, wanted = KERNELS.route(x, router), route(x, router)

    assert torch.equal(factors < 0, wanted < 0)
    torch.testing.assert_close(factors.clamp(min=0), wanted.clamp(min=0))


def test_the_kernel_weighs_the_experts_that_a_table_says() -> None:
    routing = Routing(
        count=24, per_token=3, normalise=True, function="sqrtsoftplus", scale=1.5, vocabulary=7
    )
    table = torch.stack([torch.randperm(24)[:3] for _ in range(7)]).int()
    router = Router(torch.randn(24, HIDDEN), None, routing, id_table=table)
    x, ids = torch.randn(40, HIDDEN), torch.randint(7, (40,), dtype=torch.int32)

    factors, wanted = KERNELS.route(x, router, ids), route(x, router, ids)

    assert torch.equal(factors < 0, wanted < 0)
    torch.testing.assert_close(factors.clamp(min=0), wanted.clamp(min=0))


def test_of_equal_experts_the_first_is_chosen() -> None:
    layer, shape = make_layer(5, 1, normalise=True)
    scores = torch.randn(1, HIDDEN)
    token = torch.randn(1, HIDDEN)
    alike = with_router(layer, scores.repeat(5, 1).contiguous())

    assert layer.moe is not None
    one = Routing(count=1, per_token=1, normalise=True)
    first = Moe(router=Router(scores, None, one), experts=layer.moe.experts[:1])
    alone = replace(layer, moe=first)
    alone_shape = replace(shape, routing=one)
    assert torch.equal(run(alike, shape, token), run(alone, alone_shape, token))


def test_scores_however_large_choose_one_expert() -> None:
    layer, shape = make_layer(4, 2, normalise=True)
    assert layer.moe is not None
    large = with_router(layer, layer.moe.router.matrix * 1e6)

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
