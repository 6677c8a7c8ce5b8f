from collections.abc import Callable

from potluck.plan.route import Problem, Route
from potluck.plan.search import never
from potluck.plan.throughput import best_shared, period_ms

ProblemOf = Callable[..., Problem]


def test_users_in_groups_get_a_token_as_often_as_the_slowest_stage_has_served_all_groups(
    problem_of: ProblemOf,
) -> None:
    def problem_with(tokens: int) -> Problem:  # a token more takes as long as the first one
        return problem_of(2, num_layers=12, layer_ms=(1.0 * tokens, 2.0 * tokens), hop_ms=1.0)

    route = Route(devices=(0, 1), counts=(8, 4), ms=0.0)

    assert period_ms(problem_with, 1, route) == 8 + 8 + 2
    assert period_ms(problem_with, 2, route) == 8 + 8 + 2  # each passes while the other computes
    assert period_ms(problem_with, 8, route) == 8 * 8


def test_where_tokens_together_take_as_long_as_one_they_go_together(problem_of: ProblemOf) -> None:
    problem = problem_of(2, num_layers=12, layer_ms=(1.0, 1.0), hop_ms=1.0)
    route = Route(devices=(0, 1), counts=(6, 6), ms=0.0)

    assert period_ms(lambda _: problem, 8, route) == period_ms(lambda _: problem, 1, route)


def test_what_does_not_fit_has_no_route(problem_of: ProblemOf, uneven: ProblemOf) -> None:
    for problem in (problem_of(3, room=3), problem_of(3, room=0), uneven([30, 30, 30])):
        assert best_shared(lambda _, problem=problem: problem, 4, never) is None


def test_the_slowest_device_is_relieved_by_all_others(problem_of: ProblemOf) -> None:
    def problem_with(tokens: int) -> Problem:
        return problem_of(4, num_layers=12, layer_ms=(1.0 * tokens,) * 4, hop_ms=0.1)

    route = best_shared(problem_with, 8, never)

    assert route is not None
    assert route.counts == (3, 3, 3, 3)


def test_a_search_that_has_no_time_left_returns_what_it_has(problem_of: ProblemOf) -> None:
    problem = problem_of(2, num_layers=12, layer_ms=(1.0, 1.0), hop_ms=1.0)

    assert best_shared(lambda _: problem, 8, lambda: True) is not None
