"""Find the route on which several users together get the most tokens.

The tokens of a group of users are computed at once, and the groups follow each other through the
stages. With g groups, each user gets a token once in a period:

    period = max(time of a group on the whole route, g · time of a group on the slowest stage)

Large groups read the weights less often, and with as many groups as stages no stage waits. So one
user wants the least sum of all stages, and many users want equal ones.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import TypeAlias

from potluck.plan.route import Problem, Route, route_cost_ms, slowest_ms
from potluck.plan.search import Stop, best_route

TOLERANCE = 0.001  # a period that is longer by less counts as the shortest one

ProblemOf: TypeAlias = Callable[[int], Problem]
"""The problem in which so many tokens are computed at once."""


def period_ms(problem_of: ProblemOf, users: int, route: Route) -> float:
    """The time in which each of the users gets a token on this route, in the best groups."""
    return min(
        _period_ms(problem_of(tokens), groups, route) for groups, tokens in _groupings(users)
    )


def best_shared(problem_of: ProblemOf, users: int, stop: Stop) -> Route | None:
    """The route with the shortest period for so many users; None if no route fits.

    Its `ms` is the time of one of its groups.
    """
    best, shortest = None, inf
    for groups, tokens in _groupings(users):
        problem = problem_of(tokens)
        found = _shorter(problem, groups, shortest, stop)
        if found is not None:
            best, shortest = found, _period_ms(problem, groups, found)
    return best


def _groupings(users: int) -> list[tuple[int, int]]:
    """Numbers of groups, and the tokens of the largest group; the fewest groups for each size."""
    sizes = {-(-users // groups) for groups in range(1, users + 1)}
    return [(-(-users // tokens), tokens) for tokens in sorted(sizes, reverse=True)]


def _period_ms(problem: Problem, groups: int, route: Route) -> float:
    slowest = slowest_ms(problem, route.devices, route.counts)
    return max(route_cost_ms(problem, route.devices, route.counts), groups * slowest)


def _shorter(problem: Problem, groups: int, longest_ms: float, stop: Stop) -> Route | None:
    """The route with the shortest period, if it is shorter than `longest_ms`.

    There is a route with a period of p if the fastest one whose stages take at most p / g takes at
    most p. The least p is found by bisection.
    """
    low, high, best = 0.0, longest_ms, None
    middle = longest_ms
    while high - low > TOLERANCE * high or best is None:
        route = best_route(_limited(problem, middle / groups), stop)
        if route is not None and route.ms <= middle:
            low = max(low, route.ms)  # with shorter stages no route is faster
            high, best = min(high, _period_ms(problem, groups, route)), route
        elif best is None:
            return None
        else:
            low = middle
        middle = (low + high) / 2
        if stop():
            break
    return best if high < longest_ms else None


def _limited(problem: Problem, limit_ms: float) -> Problem:
    """The same problem, in which no stage takes longer than a limit."""
    if limit_ms == inf:
        return problem
    spans = tuple(
        span.limited(limit_ms, limit_ms - head)
        for span, head in zip(problem.spans, problem.head_ms, strict=True)
    )
    return replace(problem, spans=spans)
