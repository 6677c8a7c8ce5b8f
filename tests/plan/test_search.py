import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from potluck.plan.partition import Room
from potluck.plan.search import (
    EXACT_SEATS,
    Problem,
    any_route,
    best_route,
    best_slowest,
    evaluate,
    lower_bound_ms,
    slowest_ms,
    tour_ms,
)


def problem_of(
    size: int, num_layers: int = 12, room: int = 12, hop_ms: float = 1.0, **changes: object
) -> Problem:
    """Equal devices, each of its own computer but the first, which is the master's."""
    problem = Problem(
        num_layers=num_layers,
        layer_ms=(1.0,) * size,
        head_ms=(0.0,) * size,
        rooms=(Room(middle=room, first=room, last=room, only=room),) * size,
        enter_ms=(0.0,) + (hop_ms,) * (size - 1),
        leave_ms=(0.0,) + (hop_ms,) * (size - 1),
        hop_ms=tuple(tuple(hop_ms * (a != b) for b in range(size)) for a in range(size)),
        workers=tuple((1 << k) >> 1 for k in range(size)),
    )
    return replace(problem, **changes)  # pyright: ignore[reportArgumentType]


def test_a_route_costs_its_layers_its_head_and_its_tour() -> None:
    problem = problem_of(3, room=8, layer_ms=(3.0, 2.0, 1.0), head_ms=(9.0, 0.5, 9.0))

    route = evaluate(problem, (2, 1))

    assert route is not None
    assert route.counts == (8, 4)
    assert tour_ms(problem, (2, 1)) == 3.0
    assert route.ms == 8 * 1.0 + 4 * 2.0 + 0.5 + 3.0
    assert slowest_ms(problem, route) == 8.5


def test_among_equals_the_fewest_devices_win() -> None:
    route = best_route(problem_of(4, hop_ms=0.0))

    assert route is not None
    assert len(route.seats) == 1


def test_devices_that_are_required_take_part() -> None:
    route = best_route(problem_of(4, required=frozenset({1, 3})))

    assert route is not None
    assert sorted(route.seats) == [1, 3]


def test_the_way_around_a_bad_link_is_taken() -> None:
    far = ((0, 9, 1.0), (9, 0, 1.0), (1.0, 1.0, 0))
    problem = problem_of(3, room=4, hop_ms=1.0)

    route = best_route(replace(problem, hop_ms=far))

    assert route is not None
    assert route.seats in ((0, 2, 1), (1, 2, 0))


def test_the_slowest_device_is_relieved_by_all_others() -> None:
    route = best_slowest(problem_of(4, num_layers=12, hop_ms=5.0))

    assert route is not None
    assert route.counts == (3, 3, 3, 3)


def test_devices_that_take_no_time_bound_nothing() -> None:
    route = best_slowest(problem_of(3, layer_ms=(0.0, 0.0, 1.0), head_ms=(1.0, 1.0, 0.0)))

    assert route is not None
    assert slowest_ms(problem_of(3), route) >= 0


def test_what_does_not_fit_has_no_route() -> None:
    problem = problem_of(3, room=3)

    assert any_route(problem) is None
    assert best_route(problem) is None
    assert best_slowest(problem) is None
    assert best_slowest(problem_of(3, room=0)) is None
    assert lower_bound_ms(problem) == float("inf")


def test_required_devices_in_the_middle_are_placed_between_the_ends() -> None:
    only_middle = Room(middle=5, first=0, last=0, only=0)
    end = Room(middle=9, first=4, last=4, only=0)

    seats = any_route(problem_of(3, rooms=(end, only_middle, end)))

    assert seats is not None
    assert sorted(seats) == [0, 1, 2]
    assert seats[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("find", [best_route, best_slowest])
def test_twelve_devices_are_planned_in_reasonable_time(
    find: Callable[[Problem], object],
) -> None:
    random = Random(1)
    problem = problem_of(
        EXACT_SEATS,
        num_layers=60,
        room=7,
        layer_ms=tuple(random.uniform(0.3, 3) for _ in range(EXACT_SEATS)),
    )
    hops = [[random.uniform(0.2, 4) for _ in problem.rooms] for _ in problem.rooms]
    problem = replace(problem, hop_ms=tuple(map(tuple, hops)))

    start = time.process_time()
    assert find(problem) is not None
    assert time.process_time() - start < 10  # some 0.5 s on a machine of 2024, ours and idle
