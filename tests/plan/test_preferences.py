"""What a plan prefers beside the time of a token never hides what a token takes."""

from collections.abc import Callable

import pytest

from potluck.plan.cost import DeviceCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.preferences import PICTURES_COST

DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]
SEES = 50_000.0


def test_the_computer_that_reads_a_picture_fastest_comes_first(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Desk", 500, prefill_ms=256.0),
        device_of("Gamer", 500, prefill_ms=2.56),
        device_of("Attic", 500, prefill_ms=512.0),
    ]
    links = links_of(devices)
    blind, seeing = shape_of(), shape_of(picture_tokens=50_000.0)

    text = make_plan(blind, devices, links)
    pictures = make_plan(seeing, devices, links)

    assert text.stages[0].name == "Desk"
    assert pictures.stages[0].name == "Gamer"
    assert pictures.token_ms == pytest.approx(text.token_ms)
    assert "Gamer reads pictures." in pictures.explanation
    assert "pictures" not in text.explanation


def test_no_further_computer_takes_part_because_it_reads_pictures_sooner(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Desktop", decode_ms=2.0, prefill_ms=512.0),
        device_of("Attic", decode_ms=2.0, prefill_ms=2.56),
    ]
    shape, links = shape_of(20, picture_tokens=SEES), links_of(devices, rtt_ms=0.4)

    plan = make_plan(shape, devices, links)

    assert [(stage.name, stage.layers) for stage in plan.stages] == [("Desktop", range(20))]
    assert plan.token_ms == plan.lower_bound_ms == pytest.approx(40.7)
    assert plan.optimal


@pytest.mark.parametrize("more", [0.3, 2.0])  # ms of the head on the computer that reads slowly
def test_pictures_are_read_sooner_where_a_token_takes_nearly_as_long(
    more: float, device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Desk", 500, prefill_ms=512.0, head_ms=more),
        device_of("Gamer", 500, prefill_ms=2.56),
    ]
    links = links_of(devices)
    text = make_plan(shape_of(), devices, links)

    seeing = make_plan(shape_of(picture_tokens=SEES), devices, links)

    assert text.stages[0].name == "Desk"
    assert text.optimal
    if seeing.stages[0].name == "Desk":
        assert more > 1
        assert (seeing.token_ms, seeing.optimal) == (text.token_ms, True)
        return
    assert more < 1
    assert text.token_ms < seeing.token_ms <= (1 + PICTURES_COST) * text.token_ms
    assert seeing.lower_bound_ms == text.lower_bound_ms
    assert not seeing.optimal
    assert (
        "Gamer is first since it reads pictures sooner: a token takes 38.334 ms instead of 38.034 ms."
        in seeing.explanation
    )
    assert "So many computers" not in seeing.explanation  # no other one is faster for tokens


def test_several_users_get_the_route_on_which_they_get_most_tokens(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Desk", 500, prefill_ms=256.0),
        device_of("Gamer", 500, prefill_ms=2.56),
    ]
    links = links_of(devices)
    plans = [
        make_plan(shape_of(picture_tokens=tokens), devices, links, users=4)
        for tokens in (0.0, SEES)
    ]

    assert plans[0].stages == plans[1].stages
    assert plans[0].users_tokens_per_s == plans[1].users_tokens_per_s
    assert plans[0].lower_bound_ms == plans[1].lower_bound_ms
    assert f"{plans[1].stages[0].name} reads pictures." in plans[1].explanation


def test_ranks_of_the_first_group_all_read_pictures(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Desk"), device_of("Gamer")]
    shape = shape_of(picture_tokens=SEES)

    plan = make_plan(shape, devices, links_of(devices), layers=[("desk+gamer", 36)])

    assert "\nDesk and Gamer read pictures.\n" in plan.explanation
