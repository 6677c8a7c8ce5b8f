from collections.abc import Callable, Sequence

import pytest

from potluck.errors import InvalidLayersError, NotEnoughMemoryError, UsageError
from potluck.plan.cost import DeviceCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.stages import Plan

Home = tuple[ModelShape, list[DeviceCost], Links]


@pytest.fixture
def home(
    shape_of: Callable[..., ModelShape],
    device_of: Callable[..., DeviceCost],
    links_of: Callable[..., Links],
) -> Home:
    devices = [
        device_of("Laptop", 400, node="aaaa" + "1" * 60),
        device_of("Living-room PC", decode_ms=0.5, device="cuda:0", node="bbbb" + "1" * 60),
        device_of("Living-room PC", decode_ms=0.5, device="cuda:1", node="bbbb" + "1" * 60),
        device_of("Mac", node="cccc" + "1" * 60),
        device_of("Mac", node="cccd" + "1" * 60),
    ]
    return shape_of(20), devices, links_of(devices)


def plan_of(home: Home, *layers: tuple[str, int], min_workers: int = 0) -> Plan:
    return make_plan(*home, layers=layers, min_workers=min_workers)


def shares(plan: Plan) -> list[tuple[str, Sequence[int]]]:
    return [(f"{s.name} {s.device}", (s.layers.start, s.layers.stop)) for s in plan.stages]


def test_layers_by_hand_are_followed_in_their_order(home: Home) -> None:
    plan = plan_of(home, ("living-room pc/cuda:1", 12), (" LAPTOP ", 5), ("cccd", 3))

    assert shares(plan) == [
        ("Living-room PC cuda:1", (0, 12)),
        ("Laptop cpu", (12, 17)),
        ("Mac cpu", (17, 20)),
    ]
    assert [stage.embedding for stage in plan.stages] == [True, False, False]
    assert [stage.head for stage in plan.stages] == [False, False, True]
    assert plan.stages[2].node.startswith("cccd")
    assert not plan.optimal


def test_layers_by_hand_cost_what_the_same_plan_costs_otherwise(home: Home) -> None:
    best = make_plan(*home, min_workers=2)

    again = plan_of(
        home,
        *(
            (f"{s.name}/{s.device}" if "PC" in s.name else s.node, len(s.layers))
            for s in best.stages
        ),
    )

    assert again.token_ms == pytest.approx(best.token_ms)


def test_a_name_shown_by_the_plan_is_understood(home: Home) -> None:
    assert plan_of(home, ("Mac (cccc1111)", 20)).stages[0].node.startswith("cccc")


def test_a_computer_means_the_best_of_its_devices(home: Home) -> None:
    for name in ("Living-room PC", "bbbb1"):
        plan = plan_of(home, (name, 12), ("living-room pc/cuda:1", 8))
        assert shares(plan) == [
            ("Living-room PC cuda:0", (0, 12)),
            ("Living-room PC cuda:1", (12, 20)),
        ]


def test_no_layers_for_a_computer_leave_it_out(home: Home) -> None:
    assert shares(plan_of(home, ("Laptop", 0), ("cccc1", 20))) == [("Mac cpu", (0, 20))]


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        (
            [("Tower", 20)],
            r"called Tower that can take part now\. There are: Laptop, Living-room PC/cuda:0",
        ),
        ([("aaa", 20)], "no computer called aaa"),
        ([("", 20)], "no computer called"),
        ([("Mac", 20)], r"may mean several: Mac \(cccc1111\) \(id cccc1111, cpu\)"),
        ([("Living-room PC", 12), ("bbbb", 8)], "Living-room PC/cuda:0 is named twice"),
        ([("Living-room PC/cuda:2", 20)], "no computer called Living-room PC/cuda:2"),
        ([("Laptop", 12), ("laptop", 8)], "Laptop is named twice"),
        ([("Laptop", 10)], "has 20 layers, and the ones given add up to 10"),
        ([("Laptop", 10), ("cccc", 11)], "add up to 21"),
        ([("Laptop", -1), ("cccc", 21)], "Laptop cannot have -1 layers"),
        ([], "add up to 0"),
    ],
)
def test_layers_that_make_no_plan_are_a_sentence(
    home: Home, layers: list[tuple[str, int]], sentence: str
) -> None:
    with pytest.raises(InvalidLayersError, match=sentence):
        plan_of(home, *layers)


def test_a_share_that_does_not_fit_names_the_computer_and_the_memory(home: Home) -> None:
    with pytest.raises(NotEnoughMemoryError, match="needs 435 B and Laptop offers 400 B") as info:
        plan_of(home, ("Laptop", 20))
    assert info.value.data == {"needed": 435, "available": 400, "computer": "Laptop"}


def test_too_few_computers_by_hand_are_refused(home: Home) -> None:
    with pytest.raises(UsageError, match="2 other computers were to take part"):
        plan_of(home, ("Laptop", 10), ("cccc", 10), min_workers=2)


def test_layers_by_hand_may_be_what_the_planner_would_never_fit(
    shape_of: Callable[..., ModelShape], device_of: Callable[..., DeviceCost]
) -> None:
    shape, devices = shape_of(2), [device_of("Laptop", 60), device_of("Desktop", 60)]

    with pytest.raises(NotEnoughMemoryError, match="Laptop offers"):
        make_plan(shape, devices, {}, layers=[("Laptop", 2)])


def test_a_share_of_layers_that_differ_counts_its_own(
    shape_of: Callable[..., ModelShape], device_of: Callable[..., DeviceCost]
) -> None:
    shape = shape_of(layers=[0, 0, 1, 1], layer_bytes=[10, 90])
    devices = [device_of("Laptop", 250, (1.0, 5.0)), device_of("Desktop", 220, (2.0, 3.0))]

    plan = make_plan(shape, devices, {}, layers=[("Laptop", 2), ("Desktop", 2)])

    assert [stage.memory for stage in plan.stages] == [55, 220]
    assert [stage.predicted_ms for stage in plan.stages] == [2.0, 6.0]
    with pytest.raises(NotEnoughMemoryError, match="Desktop offers 220 B"):
        make_plan(shape, devices, {}, layers=[("Laptop", 1), ("Desktop", 3)])
