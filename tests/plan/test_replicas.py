"""How computers are shared out among replicas, compared with all ways there are."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from potluck.errors import NotEnoughMemoryError, PlanError, UsageError
from potluck.plan.cost import DeviceCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.replicas import EXACT, explain_replicas, plan_replicas, too_few
from potluck.plan.stages import Plan

DeviceOf = Callable[..., DeviceCost]


def names(plans: Sequence[Plan]) -> list[list[str]]:
    return [[stage.name for stage in plan.stages] for plan in plans]


def planned(shape: ModelShape, devices: Sequence[DeviceCost], links: Links, wanted: int) -> Any:
    answering = partial(make_plan, shape, links=links, measured_tokens=100)
    return plan_replicas(devices, wanted, answering=answering)


def best_by_hand(
    shape: ModelShape, devices: Sequence[DeviceCost], links: Links, count: int
) -> float:
    """The greatest rate of all ways to give each computer to one of so many replicas, or to none."""
    nodes = list(dict.fromkeys(device.node for device in devices))
    best = 0.0
    for code in range((count + 1) ** len(nodes)):
        of = {node: code // (count + 1) ** k % (count + 1) for k, node in enumerate(nodes)}
        total = 0.0
        for part in range(count):
            own = [
                replace(d, memory=d.memory if of[d.node] == part else 0)
                for k, d in enumerate(devices)
                if not k or of[d.node] == part
            ]
            try:
                total += make_plan(shape, own, links, measured_tokens=100).predicted_tokens_per_s
            except (PlanError, UsageError):
                break
        else:
            best = max(best, total)
    return best


@pytest.mark.parametrize("seed", range(30))
def test_no_other_way_to_share_them_out_gives_more_tokens(
    seed: int, home_of: Callable[..., Any]
) -> None:
    random = Random(seed)
    shape, devices, links = home_of(random)
    devices = [
        replace(d, decode_ms=tuple(ms + 0.1 for ms in d.decode_ms), can_rank=False) for d in devices
    ]
    best = best_by_hand(shape, devices, links, 2)
    try:
        found = planned(shape, devices, links, 2)
    except NotEnoughMemoryError:
        assert not best
        return
    if not best:
        assert len(found.plans) == 1
        return
    assert len(found.plans) == 2
    used = [{stage.node for stage in plan.stages} for plan in found.plans]
    assert not used[0] & used[1]
    assert sum(plan.predicted_tokens_per_s for plan in found.plans) == pytest.approx(best)


@pytest.fixture
def home(device_of: DeviceOf) -> list[DeviceCost]:
    """Two that hold the model alone, and two that hold half of it."""
    return [
        device_of("Desk", decode_ms=1.0),
        device_of("Attic", decode_ms=2.0),
        device_of("Cellar", 150, decode_ms=2.0),
        device_of("Laptop", 150, decode_ms=2.0),
    ]


def test_those_that_hold_half_of_it_are_one_replica_and_the_fastest_comes_first(
    home: list[DeviceCost], shape_of: Callable[..., ModelShape], links_of: Callable[..., Links]
) -> None:
    shape, links = shape_of(10), links_of(home)
    found = planned(shape, home, links, 3)
    assert names(found.plans) == [["Desk"], ["Attic"], ["Cellar", "Laptop"]] or names(
        found.plans
    ) == [["Desk"], ["Attic"], ["Laptop", "Cellar"]]
    text = explain_replicas(found.plans, found.together.predicted_tokens_per_s)
    assert text.startswith("The model is held 3 times, each time whole: by Desk (")
    assert "One answer runs on one of them." in text
    assert "gets nothing" not in found.plans[1].explanation
    assert found.plans[0].alone.keys() == {device.node for device in home}


def test_there_are_as_many_replicas_as_there_is_room_for(
    home: list[DeviceCost], shape_of: Callable[..., ModelShape], links_of: Callable[..., Links]
) -> None:
    shape, links = shape_of(10), links_of(home)
    assert len(planned(shape, home, links, 9).plans) == 3
    assert len(planned(shape, home, links, 1).plans) == 1
    assert "room for 3 of 9 replicas" in too_few(9, planned(shape, home, links, 9))
    small = [replace(device, memory=20) for device in home]
    with pytest.raises(NotEnoughMemoryError):
        planned(shape, small, links, 2)


def test_of_many_computers_no_exchange_of_two_would_be_better(
    device_of: DeviceOf, shape_of: Callable[..., ModelShape], links_of: Callable[..., Links]
) -> None:
    random, memories = Random(1), (150, 70, 120, 200, 70, 150, 120)
    devices = [
        device_of(f"pc {k}", memory, random.uniform(0.5, 3), node=f"{k:064x}")
        for k, memory in enumerate(memories)
    ]
    assert len(devices) > EXACT
    shape, links = shape_of(10), links_of(devices)
    found = planned(shape, devices, links, 3)
    assert len(found.plans) == 3
    used = [stage.node for plan in found.plans for stage in plan.stages]
    assert len(used) == len(set(used))


def test_a_search_that_is_stopped_gives_what_it_has(
    home: list[DeviceCost], shape_of: Callable[..., ModelShape], links_of: Callable[..., Links]
) -> None:
    answering = partial(make_plan, shape_of(10), links=links_of(home), measured_tokens=100)
    found = plan_replicas(home, 2, answering=answering, stop=lambda: True)
    assert len(found.plans) == 1
    assert "Of 2 replicas, 1 were found in the time" in too_few(2, found)
