"""Devices that compute their layers together, as a plan has them."""

from collections.abc import Callable

import pytest

from potluck.errors import InvalidLayersError, NotEnoughMemoryError
from potluck.plan.cost import DeviceCost, Links, ModelShape
from potluck.plan.groups import SUMS, group_of, sums_ms
from potluck.plan.placement import Plan, make_plan
from potluck.plan.prefill import time_to_first_token_ms

Home = tuple[ModelShape, list[DeviceCost], Links]


@pytest.fixture
def home(
    shape_of: Callable[..., ModelShape],
    device_of: Callable[..., DeviceCost],
    links_of: Callable[..., Links],
) -> Home:
    devices = [
        device_of("Desktop", 1000, decode_ms=4.0),
        device_of("Attic", 1000, decode_ms=12.0),
        device_of("C++ box", 1000, decode_ms=8.0),
    ]
    return shape_of(20), devices, links_of(devices, rtt_ms=0.4)


def plan_of(home: Home, *layers: tuple[str, int]) -> Plan:
    return make_plan(*home, layers=layers)


def test_shares_are_by_speed_and_the_slowest_counts_with_the_sums(home: Home) -> None:
    shape, devices, links = home
    group = group_of(shape, devices, links, (0, 1), prefill_tokens=64)

    assert group.shares == (3, 1)
    each = sums_ms(links, devices[:2], 4 * shape.width)
    assert each == pytest.approx(SUMS * (0.2 + 0.1 + 4 * shape.width / 1e5))
    assert group.cost.decode_ms == pytest.approx((0.75 * 4.0 + each,))
    assert group.cost.prefill_ms[0] > group.cost.decode_ms[0]


def test_what_ranks_cannot_share_each_of_them_has(home: Home) -> None:
    shape, devices, links = home
    half = ModelShape(**{**_fields(shape), "divided": (0.5,)})
    whole, part = (
        group_of(s, devices, links, (0, 1), prefill_tokens=64).cost.decode_ms[0]
        for s in (shape, half)
    )

    assert part - whole == pytest.approx((0.5 + 0.5 * 0.25) * 12.0 - 0.75 * 4.0)


def test_a_group_by_hand_stands_in_the_plan_with_its_ranks(home: Home) -> None:
    plan = plan_of(home, ("c++ box", 5), ("desktop+attic", 15))

    assert [(s.name, s.layers, s.rank, s.shares) for s in plan.stages] == [
        ("C++ box", range(5), 0, (1,)),
        ("Desktop", range(5, 20), 0, (3, 1)),
        ("Attic", range(5, 20), 1, (3, 1)),
    ]
    assert [s.head for s in plan.stages] == [False, True, False]
    assert [s.name for s in plan.pipeline] == ["C++ box", "Desktop"]
    assert plan.stages[1].memory > plan.stages[2].memory
    assert "Desktop + Attic together have layers 5 to 19" in plan.explanation
    assert "75 %, 25 %" in plan.explanation
    hops = sum(hop.ms(0) for hop in plan.hops)
    assert plan.token_ms >= sum(s.predicted_ms for s in plan.pipeline) + hops
    first = time_to_first_token_ms(
        home[0], plan, prompt_tokens=64, chunk_tokens=64, measured_tokens=64
    )
    assert first > plan.token_ms


def test_a_group_holds_what_its_members_hold_of_their_shares(home: Home) -> None:
    shape, devices, links = home
    needed = shape.model_memory
    small = [*devices[:1], *(d for d in devices[1:])]
    small[1] = DeviceCost(**{**_fields(devices[1]), "memory": needed // 8})

    with pytest.raises(NotEnoughMemoryError, match="Attic"):
        make_plan(shape, small, links, layers=[("desktop+attic", 20)])
    plan = make_plan(shape, devices, links, layers=[("desktop+attic", 20)])
    assert sum(stage.memory for stage in plan.stages) >= needed - 2


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([("desktop+desktop", 20)], "names a device twice"),
        ([("desktop+attic", 10), ("attic", 10)], "Attic is named twice"),
        ([("desktop+cellar", 20)], "no computer called cellar"),
        ([("desktop+", 20)], "no computer called "),
        ([("desktop+attic", 19)], "add up to 19"),
    ],
)
def test_groups_that_cannot_be_are_refused(
    home: Home, layers: list[tuple[str, int]], said: str
) -> None:
    with pytest.raises(InvalidLayersError, match=said):
        plan_of(home, *layers)


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]
