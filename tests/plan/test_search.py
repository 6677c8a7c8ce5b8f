import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from potluck.plan.partition import Room
from potluck.plan.route import Problem, any_route, lower_bound_ms, slowest_ms
from potluck.plan.search import EXACT_SEATS, best_including, best_route, best_slowest

ProblemOf = Callable[..., Problem]


def test_among_equals_the_fewest_devices_win(problem_of: ProblemOf) -> None:
    route = best_route(problem_of(4, hop_ms=0.0))

    assert route is not None
    assert len(route.seats) == 1


def test_devices_that_are_required_take_part(problem_of: ProblemOf) -> None:
    route = best_route(problem_of(4, required=frozenset({1, 3})))

    assert route is not None
    assert sorted(route.seats) == [1, 3]


def test_the_way_around_a_bad_link_is_taken(problem_of: ProblemOf) -> None:
    far = ((0, 9, 1.0), (9, 0, 1.0), (1.0, 1.0, 0))
    problem = problem_of(3, room=4, hop_ms=1.0)

    route = best_route(replace(problem, hop_ms=far))

    assert route is not None
    assert route.seats in ((0, 2, 1), (1, 2, 0))


def test_the_slowest_device_is_relieved_by_all_others(problem_of: ProblemOf) -> None:
    route = best_slowest(problem_of(4, num_layers=12, hop_ms=5.0))

    assert route is not None
    assert route.counts == (3, 3, 3, 3)


def test_devices_that_take_no_time_bound_nothing(problem_of: ProblemOf) -> None:
    problem = problem_of(3, layer_ms=(0.0, 0.0, 1.0), head_ms=(1.0, 1.0, 0.0))

    route = best_slowest(problem)

    assert route is not None
    assert slowest_ms(problem, route) == 1.0


def test_what_does_not_fit_has_no_route(problem_of: ProblemOf) -> None:
    problem = problem_of(3, room=3)

    assert any_route(problem) is None
    assert best_route(problem) is None
    assert best_slowest(problem) is None
    assert best_slowest(problem_of(3, room=0)) is None
    assert lower_bound_ms(problem) == float("inf")


def test_a_further_device_is_weighed_beside_any_number_of_others(problem_of: ProblemOf) -> None:
    few, many = problem_of(4, room=4), problem_of(16, num_layers=15, room=1)
    small = Room(middle=0, first=0, last=0, only=0)

    for problem in (few, many):
        route = best_route(problem)
        assert route is not None
        further = next(i for i in range(len(problem.rooms)) if i not in route.seats)
        other = best_including(problem, route, further)
        # Where every layer has its own device, a further one has no share unless another goes.
        assert (other is None) == (problem is many)
        rooms = tuple(small if i == further else room for i, room in enumerate(problem.rooms))
        assert best_including(replace(problem, rooms=rooms), route, further) is None


@pytest.mark.slow
@pytest.mark.parametrize("find", [best_route, best_slowest])
def test_twelve_devices_are_planned_in_reasonable_time(
    problem_of: ProblemOf,
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
