from collections.abc import Callable

from potluck.plan.route import Problem, slowest_ms
from potluck.plan.search import never
from potluck.plan.throughput import best_slowest

ProblemOf = Callable[..., Problem]


def test_the_slowest_device_is_relieved_by_all_others(problem_of: ProblemOf) -> None:
    route = best_slowest(problem_of(4, num_layers=12, hop_ms=5.0), never)

    assert route is not None
    assert route.counts == (3, 3, 3, 3)


def test_devices_that_take_no_time_bound_nothing(problem_of: ProblemOf) -> None:
    problem = problem_of(3, layer_ms=(0.0, 0.0, 1.0), head_ms=(1.0, 1.0, 0.0))

    route = best_slowest(problem, never)

    assert route is not None
    assert slowest_ms(problem, route) == 1.0


def test_what_does_not_fit_has_no_route(problem_of: ProblemOf, uneven: ProblemOf) -> None:
    for problem in (problem_of(3, room=3), problem_of(3, room=0), uneven([30, 30, 30])):
        assert best_slowest(problem, never) is None


def test_layers_that_differ_are_cut_where_the_slowest_device_takes_least(
    uneven: ProblemOf,
) -> None:
    problem = uneven([1000] * 3)

    route, alone = best_slowest(problem, never), best_slowest(problem.only([0]), never)

    assert route is not None
    assert alone is not None
    assert slowest_ms(problem, route) < slowest_ms(problem.only([0]), alone) / 2
