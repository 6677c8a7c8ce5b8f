"""Who reads pictures for the first stage, and that nobody does where it does not pay."""

from collections.abc import Callable, Collection

import pytest

from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.viewing import Viewing, find_viewing

DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]

SIZES = {
    "picture_tokens": 50_000.0,
    "tower_bytes": 80,
    "picture_bytes": 20,
    "pixel_bytes": 3_000_000,
    "row_bytes": 8_000_000,
}


@pytest.fixture
def home(device_of: DeviceOf) -> list[DeviceCost]:
    """A laptop that is fastest alone, and a gaming PC with too little memory for layers that reads pictures fast."""
    return [
        device_of("Laptop", decode_ms=1.0, picture_ms=6000.0),
        device_of("Gamer", 101, decode_ms=50.0, picture_ms=600.0),
        device_of("Attic", 101, decode_ms=50.0, picture_ms=5000.0),
    ]


def viewing_of(
    shape: ModelShape, home: list[DeviceCost], links: Links, busy: Collection[NodeId] = ()
) -> Viewing | None:
    plan = make_plan(shape, home, links)
    assert [stage.name for stage in plan.stages] == ["Laptop"]
    return find_viewing(shape, home, links, plan, measured_tokens=256, busy=busy)


def test_a_computer_without_layers_reads_pictures_where_that_is_much_sooner(
    home: list[DeviceCost], shape_of: ShapeOf, links_of: LinksOf
) -> None:
    shape, links = shape_of(20, **SIZES), links_of(home, rtt_ms=1.0, bytes_per_s=100e6)

    viewing = viewing_of(shape, home, links)

    assert viewing is not None
    (stage,) = viewing.plan.stages
    assert (stage.name, stage.layers, stage.tower, stage.memory) == ("Gamer", range(0), True, 100)
    assert not stage.embedding
    assert not stage.head
    assert viewing.ms == pytest.approx(600 + 30 + 80, abs=5)  # pixels there, and rows back
    assert viewing.first_ms == pytest.approx(6000 + 30, abs=35)
    assert viewing.explanation == (
        "Pictures are read by Gamer: a large one in 0.7 s instead of 6.0 s."
    )


@pytest.mark.parametrize(
    ("gamer", "link"),
    [
        ({"picture_ms": 4500.0}, 100e6),  # little sooner
        ({"memory": 99}, 100e6),  # no room for the tower
        ({}, 2e6),  # the link takes all of the gain
    ],
)
def test_it_is_left_to_the_first_stage_where_it_does_not_pay(
    gamer: dict[str, float],
    link: float,
    device_of: DeviceOf,
    home: list[DeviceCost],
    shape_of: ShapeOf,
    links_of: LinksOf,
) -> None:
    values = {"memory": 101, "decode_ms": 50.0, "picture_ms": 600.0} | gamer
    home[1] = device_of("Gamer", int(values.pop("memory")), **values)

    assert viewing_of(shape_of(20, **SIZES), home, links_of(home, bytes_per_s=link)) is None


def test_what_nobody_notices_is_no_gain(
    home: list[DeviceCost], shape_of: ShapeOf, device_of: DeviceOf, links_of: LinksOf
) -> None:
    home = [device_of("Laptop", picture_ms=300.0), home[1]]
    home[1] = device_of("Gamer", 101, decode_ms=50.0, picture_ms=1.0)

    assert viewing_of(shape_of(20, **SIZES), home, links_of(home, bytes_per_s=1e9)) is None


def test_a_computer_that_reads_prompts_or_has_no_room_beside_its_layers_is_left_alone(
    home: list[DeviceCost], shape_of: ShapeOf, links_of: LinksOf
) -> None:
    shape, links = shape_of(20, **SIZES), links_of(home, bytes_per_s=100e6)
    assert viewing_of(shape, home, links, busy=[home[1].node]) is None

    plan = make_plan(shape, home, links, layers=(("Laptop", 19), ("Gamer", 1)))
    assert find_viewing(shape, home, links, plan, measured_tokens=256) is None


def test_a_model_of_text_has_no_pictures_to_read(
    home: list[DeviceCost], shape_of: ShapeOf, links_of: LinksOf
) -> None:
    assert viewing_of(shape_of(20), home, links_of(home)) is None


def test_a_computer_that_measured_no_tower_is_judged_by_its_chunks(
    device_of: DeviceOf, shape_of: ShapeOf
) -> None:
    shape = shape_of(20, picture_tokens=512.0)
    assert shape.picture_ms(device_of("Old", prefill_ms=100.0), 256) == 200.0
    assert shape.picture_ms(device_of("New", prefill_ms=100.0, picture_ms=7.0), 256) == 7.0
