"""Computers are shared out as a request says it; none beside those that it names reads pictures."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.sharing_out import may_have_viewer, share_out
from potluck.ids import NodeId
from potluck.plan.apart import Sizes
from potluck.plan.cost import DeviceCost, LinkCost, ModelShape
from potluck.plan.placement import make_plan

SHAPE = ModelShape(
    layers=(0, 0),
    layer_bytes=(10,),
    cache_bytes=(10,),
    embedding_bytes=15,
    head_bytes=20,
    hidden_bytes=8192,
    picture_tokens=50_000.0,
    tower_bytes=80,
    picture_bytes=20,
    pixel_bytes=3_000_000,
    row_bytes=8_000_000,
)


def device(name: str, number: int, decode_ms: float, picture_ms: float) -> DeviceCost:
    return DeviceCost(
        node=NodeId(f"{number:064x}"),
        name=name,
        device="cpu",
        memory=10_000,
        decode_ms=(decode_ms,),
        prefill_ms=(10.0,),
        head_ms=0.0,
        picture_ms=picture_ms,
    )


DESK, GAMER = device("Desk", 1, 1.0, 6000.0), device("Gamer", 2, 50.0, 100.0)
LINK = LinkCost(rtt_ms=1.0, bytes_per_s=1e8)
LINKS = {(DESK.node, GAMER.node): LINK, (GAMER.node, DESK.node): LINK}
SIZES = Sizes(
    shape=SHAPE,
    links=LINKS,
    cache_bytes=lambda tokens: tokens,
    measured_tokens=256,
    context=64,
    most_bytes=0,
)


@pytest.mark.parametrize(
    ("asked", "is_viewed"),
    [
        ({}, True),
        ({"users": 2}, True),
        ({"layers": (("Desk", 2),)}, False),
        ({"workers": 1}, False),
        ({"prefill": ("Gamer",)}, False),
        ({"replicas": 2}, False),
    ],
)
def test_nobody_else_reads_pictures_where_a_person_chose_the_computers(
    asked: dict[str, Any], *, is_viewed: bool
) -> None:
    assert may_have_viewer(PlanRequest(**asked)) is is_viewed


@pytest.mark.parametrize(("layers", "viewer"), [(None, ["Gamer"]), ((("Desk", 2),), [])])
def test_a_plan_has_a_viewer_only_where_nobody_chose_the_computers(
    layers: tuple[tuple[str, int], ...] | None, viewer: Sequence[str]
) -> None:
    shared = share_out(
        PlanRequest(layers=layers),
        SIZES,
        [DESK, GAMER],
        may_choose=False,
        answering=partial(
            make_plan,
            SHAPE,
            links=LINKS,
            sums={},
            layers=(("Desk", 2),),
            min_workers=0,
            users=1,
            measured_tokens=256,
            near=(),
        ),
    )

    assert [stage.name for stage in shared.plan.stages] == ["Desk"]
    viewing = shared.viewing.plan.stages if shared.viewing is not None else ()
    assert [stage.name for stage in viewing] == viewer
