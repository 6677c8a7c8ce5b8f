"""Computers are shared out as a request says it; none beside those that it names reads pictures."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.sharing_out import (
    SharedOut,
    check_replicas,
    may_have_viewer,
    share_out,
)
from potluck.errors import InvalidLayersError, NotEnoughMemoryError, PotluckError, UsageError
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
ATTIC = device("Attic", 3, 50.0, 6000.0)
LINK = LinkCost(rtt_ms=1.0, bytes_per_s=1e8)
LINKS = {(a.node, b.node): LINK for a in (DESK, GAMER, ATTIC) for b in (DESK, GAMER, ATTIC)}
SIZES = Sizes(
    shape=SHAPE,
    links=LINKS,
    cache_bytes=lambda tokens: tokens,
    measured_tokens=256,
    context=1024,
    most_bytes=1024,
)


@pytest.mark.parametrize(
    ("asked", "is_viewed"),
    [
        ({}, True),
        ({"users": 2}, True),
        ({"layers": (("Desk", 2),)}, False),
        ({"workers": 1}, False),
        ({"prefill": ("Gamer",)}, False),
        ({"pictures": "Gamer"}, False),
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


def shared_by_hand(
    pictures: str | None,
    devices: Sequence[DeviceCost],
    shape: ModelShape = SHAPE,
    **asked: Any,
) -> SharedOut:
    request = PlanRequest(pictures=pictures, **asked)
    answering = partial(
        make_plan,
        shape,
        links=LINKS,
        sums={},
        layers=request.layers,
        min_workers=0,
        users=1,
        measured_tokens=256,
        near=(),
    )
    sizes = replace(SIZES, shape=shape)
    return share_out(request, sizes, devices, may_choose=False, answering=answering)


def test_who_is_asked_to_read_pictures_does_so_whether_it_pays_or_not() -> None:
    slow = replace(GAMER, picture_ms=60_000.0)

    shared = shared_by_hand("gamer", [DESK, slow], layers=(("Desk", 2),))

    assert [stage.name for stage in shared.plan.stages] == ["Desk"]
    assert shared.viewing is not None
    (viewer,) = shared.viewing.plan.stages
    assert (viewer.name, viewer.tower, viewer.memory) == ("Gamer", True, SHAPE.viewer_memory)
    assert "by Gamer: a large one in 60 s instead of 6.0 s" in shared.viewing.explanation


def test_the_first_one_reads_them_itself() -> None:
    shared = shared_by_hand("Desk", [DESK, GAMER])

    assert [stage.name for stage in shared.plan.stages] == ["Desk"]
    assert shared.viewing is None


BOTH = (("Desk", 1), ("Gamer", 1))


@pytest.mark.parametrize("pictures", [None, "Gamer"])
def test_a_later_stage_reads_pictures_beside_its_layers(pictures: str | None) -> None:
    """Where layers are given by hand, the planner cannot put it first."""
    shared = shared_by_hand(pictures, [DESK, GAMER], layers=BOTH)

    first, second = shared.plan.stages
    assert (first.tower, second.tower, second.layers) == (False, True, range(1, 2))
    plain = shared_by_hand(None, [DESK, replace(GAMER, picture_ms=6000.0)], layers=BOTH)
    assert plain.viewing is None  # it gains nothing
    assert second.memory == plain.plan.stages[1].memory + SHAPE.viewer_memory
    assert shared.viewing is not None
    (viewer,) = shared.viewing.plan.stages
    assert (shared.viewing.place, viewer.name, viewer.memory) == (1, "Gamer", 0)
    assert "by Gamer: a large one in 0.2 s instead of 6.0 s" in shared.viewing.explanation


@pytest.mark.parametrize(("attic_ms", "viewer"), [(6000.0, "Gamer"), (10.0, "Attic")])
def test_of_later_stages_and_computers_without_layers_the_one_reads_that_is_soonest(
    attic_ms: float, viewer: str
) -> None:
    attic = replace(ATTIC, picture_ms=attic_ms)
    answering = partial(make_plan, SHAPE, links=LINKS, layers=BOTH, measured_tokens=256)

    shared = share_out(
        PlanRequest(), SIZES, [DESK, GAMER, attic], may_choose=False, answering=answering
    )

    assert shared.viewing is not None
    assert [stage.name for stage in shared.viewing.plan.stages] == [viewer]
    assert [stage.tower for stage in shared.plan.stages] == [False, viewer == "Gamer"]


def test_a_later_stage_without_room_for_the_tower_does_not() -> None:
    memory = shared_by_hand(None, [DESK, GAMER], layers=BOTH).plan.stages[1].memory
    for less, is_viewed in ((0, True), (1, False)):
        gamer = replace(GAMER, memory=memory - less)
        assert (shared_by_hand(None, [DESK, gamer], layers=BOTH).viewing is not None) is is_viewed
    with pytest.raises(NotEnoughMemoryError, match="needs 100 B and Gamer offers 99 B"):
        shared_by_hand("Gamer", [DESK, replace(GAMER, memory=memory - 1)], layers=BOTH)


def test_layers_make_room_for_the_tower_where_they_are_not_given() -> None:
    shape = replace(SHAPE, layers=(0,) * 40)
    tight = [replace(DESK, memory=800), replace(GAMER, decode_ms=(0.1,), memory=500)]
    taken = shared_by_hand(None, tight, shape).plan.stages
    assert [stage.name for stage in taken] == ["Gamer", "Desk"] or taken[1].memory > 400

    shared = shared_by_hand("Gamer", tight, shape)

    (gamer,) = (stage for stage in shared.plan.stages if stage.name == "Gamer")
    assert gamer.embedding or (gamer.tower and gamer.memory <= 500)


@pytest.mark.parametrize(
    ("asked", "changes", "kind", "words"),
    [
        ({"pictures": "Mac"}, {}, InvalidLayersError, "no computer called Mac"),
        (
            {"layers": (("Desk", 1), ("Gamer+Attic", 1))},
            {},
            InvalidLayersError,
            "Gamer computes layers together with others",
        ),
        ({"prefill": ("Gamer",)}, {}, InvalidLayersError, "Gamer reads prompts for the others"),
        ({}, {"memory": 99}, NotEnoughMemoryError, "needs 100 B and Gamer offers 99 B"),
    ],
)
def test_who_cannot_read_pictures_is_refused(
    asked: dict[str, Any], changes: dict[str, Any], kind: type[PotluckError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        shared_by_hand(
            **({"pictures": "Gamer", "devices": [DESK, replace(GAMER, **changes), ATTIC]} | asked)
        )


def test_nobody_reads_pictures_for_a_model_of_text() -> None:
    with pytest.raises(UsageError, match=r"reads no pictures\. Leave --pictures out"):
        shared_by_hand("Gamer", [DESK, GAMER], replace(SHAPE, picture_tokens=0.0))
    with pytest.raises(UsageError, match="--pictures says which computers"):
        check_replicas(PlanRequest(pictures="Gamer", replicas=2))
