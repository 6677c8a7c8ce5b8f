from collections.abc import Callable

from potluck.plan.partition import Room
from potluck.plan.route import Problem, any_route, evaluate, slowest_ms, tour_ms, workers_of

ProblemOf = Callable[..., Problem]


def test_a_route_costs_its_layers_its_head_and_its_tour(problem_of: ProblemOf) -> None:
    problem = problem_of(3, room=8, layer_ms=(3.0, 2.0, 1.0), head_ms=(9.0, 0.5, 9.0))

    route = evaluate(problem, (2, 1))

    assert route is not None
    assert route.counts == (8, 4)
    assert tour_ms(problem, (2, 1)) == 3.0
    assert route.ms == 8 * 1.0 + 4 * 2.0 + 0.5 + 3.0
    assert slowest_ms(problem, route) == 8.5


def test_required_devices_in_the_middle_are_placed_between_the_ends(problem_of: ProblemOf) -> None:
    only_middle = Room(middle=5, first=0, last=0, only=0)
    end = Room(middle=9, first=4, last=4, only=0)

    seats = any_route(problem_of(3, rooms=(end, only_middle, end)))

    assert seats is not None
    assert sorted(seats) == [0, 1, 2]
    assert seats[1] == 1


def test_a_route_that_does_not_fit_or_is_not_allowed_is_none(problem_of: ProblemOf) -> None:
    problem = problem_of(3, room=5)

    assert evaluate(problem, (0, 1, 2)) is not None
    assert evaluate(problem, (0, 1)) is None
    assert evaluate(problem, ()) is None
    assert evaluate(problem_of(3, min_workers=2), (0, 1)) is None
    assert evaluate(problem_of(3, required=frozenset({2})), (0, 1)) is None


def test_the_masters_devices_are_no_workers(problem_of: ProblemOf) -> None:
    problem = problem_of(4, workers=(0, 0, 1, 1))

    assert workers_of(problem, (0, 1)) == 0
    assert workers_of(problem, (0, 2, 3)) == 1


def test_some_route_has_the_devices_and_the_computers_asked_for(problem_of: ProblemOf) -> None:
    seats = any_route(problem_of(6, min_workers=3, required=frozenset({5})))

    assert seats is not None
    assert len(seats) == 4
    assert 5 in seats
    assert any_route(problem_of(6, num_layers=3, min_workers=4)) is None
