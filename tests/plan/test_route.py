from collections.abc import Callable

from potluck.plan.route import (
    Problem,
    Route,
    is_full,
    ranges,
    route_cost_ms,
    slowest_ms,
    tour_ms,
    workers_of,
)

ProblemOf = Callable[..., Problem]


def test_a_route_costs_its_layers_its_head_and_its_tour(problem_of: ProblemOf) -> None:
    problem = problem_of(3, room=8, layer_ms=(3.0, 2.0, 1.0), head_ms=(9.0, 0.5, 9.0))

    ms = route_cost_ms(problem, (2, 1), (8, 4))

    assert tour_ms(problem, (2, 1)) == 3.0
    assert ms == 8 * 1.0 + 4 * 2.0 + 0.5 + 3.0
    assert slowest_ms(problem, (2, 1), (8, 4)) == 4 * 2.0 + 0.5


def test_ranges_follow_each_other() -> None:
    assert ranges((2, 1, 3)) == [range(2), range(2, 3), range(3, 6)]


def test_a_device_is_full_when_it_has_no_room_on_either_side(problem_of: ProblemOf) -> None:
    route = Route(devices=(0, 1, 2), counts=(5, 3, 4), ms=1.0)

    assert [is_full(problem_of(3, room=5), route, k) for k in range(3)] == [True, False, False]


def test_a_route_as_fast_as_its_bound_is_optimal() -> None:
    assert Route(devices=(0,), counts=(1,), ms=2.0, bound_ms=2.0).is_optimal
    assert not Route(devices=(0,), counts=(1,), ms=2.0, bound_ms=1.9).is_optimal
    assert not Route(devices=(0,), counts=(1,), ms=2.0).is_optimal


def test_the_masters_devices_are_no_workers(problem_of: ProblemOf) -> None:
    problem = problem_of(4, workers=(0, 0, 1, 1))

    assert workers_of(problem, (0, 1)) == 0
    assert workers_of(problem, (0, 2, 3)) == 1


def test_some_devices_of_a_problem_are_numbered_anew(problem_of: ProblemOf) -> None:
    problem = problem_of(4, layer_ms=(1.0, 2.0, 3.0, 4.0), required=frozenset({3}))

    some = problem.only([3, 1], required=[1])

    assert [some.layer_ms(i) for i in range(some.size)] == [4.0, 2.0]
    assert some.workers == (4, 1)
    assert some.required == {0, 1}
