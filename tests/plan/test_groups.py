"""Devices that compute their layers together, as a plan has them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise, permutations
from math import inf
from random import Random

import pytest

from potluck.errors import InvalidLayersError, NotEnoughMemoryError, UsageError
from potluck.ids import NodeId
from potluck.plan.cost import HOP_SOFTWARE_MS, DeviceCost, HopCost, Links, ModelShape
from potluck.plan.groups import (
    SUMS,
    group_of,
    sums_ms,
    weigh_groups,
    with_groups,
)
from potluck.plan.placement import RANKS_GAIN, make_plan
from potluck.plan.prefill import time_to_first_token_ms
from potluck.plan.problems import make_problem
from potluck.plan.route import Problem, route_cost_ms
from potluck.plan.search import best_route, never
from potluck.plan.stages import Plan

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
    group = group_of(shape, devices, links, (0, 1), sums={}, prefill_tokens=64)

    assert group.shares == (3, 1)
    each = sums_ms(links, devices[:2], 4 * shape.hidden_size, {})
    assert each == pytest.approx(SUMS * (0.2 + HOP_SOFTWARE_MS + 4 * shape.hidden_size / 1e5))
    assert group.cost.decode_ms == pytest.approx((0.75 * 4.0 + each,))
    assert group.cost.prefill_ms[0] > group.cost.decode_ms[0]


@pytest.mark.parametrize(
    ("ms", "shares"),
    [
        ((10.0, 10.0), (1, 1)),
        ((10.0, 10.5), (1, 1)),
        ((10.5, 10.0), (1, 1)),
        ((10.0, 20.4), (2, 1)),
        ((10.0, 14.8), (3, 2)),
        ((10.0, 600.0), (59, 1)),
        ((10.0, 12.0, 30.0), (6, 5, 2)),
    ],
)
def test_shares_are_the_simplest_with_which_nobody_takes_much_longer(
    home: Home, ms: tuple[float, ...], shares: tuple[int, ...]
) -> None:
    """So they, and the slices on the ranks' disks, stay when a measurement changes a little."""
    shape, devices, links = home
    members = [replace(d, decode_ms=(each,)) for d, each in zip(devices, ms, strict=False)]

    group = group_of(shape, members, links, range(len(ms)), sums={}, prefill_tokens=64)

    assert group.shares == shares


def test_what_ranks_cannot_share_each_of_them_has(home: Home) -> None:
    shape, devices, links = home
    half = replace(shape, divided=(0.5,))
    whole, part = (
        group_of(s, devices, links, (0, 1), sums={}, prefill_tokens=64).cost.decode_ms[0]
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
    small[1] = replace(devices[1], memory=needed // 8)

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


def divisible(home: Home) -> Home:
    """The same, with a model that ranks can share."""
    shape, devices, links = home
    return replace(shape, divided=(1.0,), hidden_size=1024), devices, links


def test_a_group_is_chosen_where_it_pays_and_the_plan_says_why(home: Home) -> None:
    shape, devices, links = divisible(home)
    devices = [replace(device, decode_ms=(8.0,), prefill_ms=(80.0,)) for device in devices[:2]]
    alone = make_plan(replace(shape, divided=()), devices, links)
    plan = make_plan(shape, devices, links)

    assert [stage.rank for stage in plan.stages] == [0, 1]
    assert plan.token_ms < (1 - RANKS_GAIN) * alone.token_ms
    assert plan.optimal
    assert "Attic and Desktop work together" in plan.explanation.replace(
        "Desktop and Attic", "Attic and Desktop"
    )
    assert (
        "together have all 20 layers, each a share of every layer (50 %, 50 %)" in plan.explanation
    )
    assert "of which its sums take 1.1 ms, and" in plan.explanation
    again = make_plan(shape, devices, links, near=plan.stages)
    assert [s.name for s in again.stages] == [s.name for s in plan.stages]


def test_no_group_is_chosen_over_a_slow_link_or_with_an_older_program(home: Home) -> None:
    shape, devices, links = divisible(home)
    slow = {pair: replace(link, rtt_ms=8.0) for pair, link in links.items()}
    old = [replace(device, can_rank=device.name == "Desktop") for device in devices]

    assert not any(stage.is_ranked for stage in make_plan(shape, devices, slow).stages)
    assert not any(stage.is_ranked for stage in make_plan(shape, old, links).stages)


def test_measured_sums_count_in_place_of_what_the_link_lets_expect(home: Home) -> None:
    shape, devices, links = divisible(home)
    devices = [replace(device, decode_ms=(8.0,), prefill_ms=(80.0,)) for device in devices[:2]]
    pair = devices[1].node, devices[0].node  # in either order
    quick, slow = (HopCost(latency_ms=ms, ms_per_byte=1e-6) for ms in (0.1, 4.5))
    estimated = make_plan(shape, devices, links)
    ranked = make_plan(shape, devices, links, sums={pair: quick})
    apart = make_plan(shape, devices, links, sums={pair: slow})

    saved = sums_ms(links, devices, 4096, {}) - sums_ms(links, devices, 4096, {pair: quick})
    assert estimated.token_ms - ranked.token_ms == pytest.approx(20 * saved)
    gpus = [replace(device, can_rank=False) for device in devices]  # which sum in another way
    assert sums_ms(links, gpus, 4096, {pair: quick}) == sums_ms(links, devices, 4096, {})
    assert "of which its sums take 0.2 ms, and Desktop alone 8.0 ms" in ranked.explanation
    assert not any(stage.is_ranked for stage in apart.stages)
    assert (
        "Desktop + Attic do not compute layers together: a layer would take them 13 ms, of which its sums 9.0 ms,"
        " and Attic alone 8.0 ms." in apart.explanation
    )
    assert (
        "do not compute"
        not in make_plan(shape, devices, links, layers=[("desktop", 20)]).explanation
    )


def test_a_group_that_reads_prompts_more_slowly_is_not_chosen_and_the_plan_says_so(
    home: Home,
) -> None:
    shape, devices, links = divisible(home)
    devices = [replace(device, decode_ms=(8.0,), prefill_ms=(80.0,)) for device in devices[:2]]
    narrow = {(devices[0].node, devices[1].node): HopCost(latency_ms=0.1, ms_per_byte=1e-4)}
    plan = make_plan(shape, devices, links, sums=narrow, measured_tokens=128)

    assert not any(stage.is_ranked for stage in plan.stages)
    assert "for 128 tokens of a prompt, and Attic alone 80 ms." in plan.explanation


@pytest.mark.parametrize(
    ("latency_ms", "own", "others", "changes", "said"),
    [
        (0.1, {}, [], {"shared_disk_bytes": 10**9}, "a model that reads a table from the disk is not"),
        (0.1, {"memory": 8}, [1.0], {}, "one of them has no memory for its share of a layer"),
        # A token takes 160.7 ms on one of the two, and 152.7 ms with both.
        (1.8, {}, [], {}, "with them a token would take 153 ms instead of 161 ms, and so small a gain may"),
        (0.1, {}, [1.0], {}, "with them a token would take 25 ms instead of 21 ms."),
        (0.1, {"memory": 12}, [1.0], {}, "their memory or the number of layers leaves no share"),
        (1.8, {}, [0.1, *[4.0] * 6], {}, "40 other groups take less time for a layer, and no more"),
    ],
)  # fmt: skip
def test_why_computers_whose_sums_were_measured_do_not_compute_layers_together(
    home: Home,
    latency_ms: float,
    own: dict[str, int],
    others: list[float],
    changes: dict[str, int],
    said: str,
) -> None:
    shape, devices, links = divisible(home)
    pair = [replace(one, decode_ms=(8.0,), prefill_ms=(80.0,), **own) for one in devices[:2]]
    more = [
        replace(devices[2], name=f"PC {k}", node=NodeId(f"{k}" * 64), decode_ms=(ms,))
        for k, ms in enumerate(others)
    ]
    sums = {(pair[0].node, pair[1].node): HopCost(latency_ms=latency_ms, ms_per_byte=1e-6)}
    nodes, (link, *_) = [one.node for one in (*pair, *more)], links.values()
    plan = make_plan(
        replace(shape, **changes),
        [*pair, *more],
        dict.fromkeys(permutations(nodes, 2), link),
        sums=sums,
    )

    assert not any(stage.is_ranked for stage in plan.stages)
    assert f"Desktop + Attic do not compute layers together: {said}" in plan.explanation


@pytest.mark.parametrize("wrong", [-1.0, inf])
def test_sums_that_cannot_be_are_refused(home: Home, wrong: float) -> None:
    shape, devices, links = home
    cost = HopCost(latency_ms=wrong, ms_per_byte=0.0)

    with pytest.raises(UsageError, match="The sums of two computers"):
        make_plan(shape, devices, links, sums={(devices[0].node, devices[1].node): cost})


def test_several_users_may_have_groups(home: Home) -> None:
    shape, devices, links = divisible(home)
    devices = [replace(device, decode_ms=(8.0,), prefill_ms=(80.0,)) for device in devices]
    plan = make_plan(shape, devices, links, users=4)

    assert plan.users_tokens_per_s >= plan.predicted_tokens_per_s


def test_routes_with_groups_equal_brute_force(
    shape_of: Callable[..., ModelShape],
    device_of: Callable[..., DeviceCost],
    links_of: Callable[..., Links],
) -> None:
    random, found_groups = Random(3), 0
    for _ in range(60):
        devices = [
            device_of(
                f"{k}", random.choice([70, 110, 400]), random.uniform(0.5, 6), node=f"{k}" * 64
            )
            for k in range(3)
        ]
        shape = replace(shape_of(random.randint(2, 5)), divided=(random.choice([0.7, 1.0]),))
        links = links_of(devices, rtt_ms=random.choice([0.1, 0.5, 2.0]))
        sums = {
            pair: HopCost(latency_ms=random.uniform(0, 1), ms_per_byte=1e-5)
            for pair in links
            if random.random() < 0.7
        }
        groups, _ = weigh_groups(shape, devices, links, sums=sums, prefill_tokens=16)
        found_groups += len(groups)
        problem = with_groups(make_problem(shape, devices, links), groups)
        found = best_route(problem, never)

        least = least_ms(problem)
        assert (found.ms if found else inf) == pytest.approx(least)
        assert found is None or found.is_optimal
    assert found_groups > 60


def least_ms(problem: Problem) -> float:
    """The time of the fastest of all routes."""
    least = inf
    for count in range(1, 4):
        for route in permutations(range(problem.size), count):
            masks = [problem.masks[i] for i in route]
            if any(a & b for a, b in combinations(masks, 2)):
                continue
            for cuts in combinations(range(1, problem.num_layers), count - 1):
                own = [range(*cut) for cut in pairwise((0, *cuts, problem.num_layers))]
                ends = [(k == 0, k == count - 1) for k in range(count)]
                if all(
                    problem.spans[i].holds(layers, first=first, last=last)
                    for i, layers, (first, last) in zip(route, own, ends, strict=True)
                ):
                    least = min(least, route_cost_ms(problem, route, [len(o) for o in own]))
    return least
