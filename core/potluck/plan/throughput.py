"""Find the route that serves many users best: its slowest device takes the least time."""

from dataclasses import replace
from itertools import combinations

from potluck.plan.route import Problem, Route
from potluck.plan.search import Stop, best_route, fits


def best_slowest(problem: Problem, stop: Stop) -> Route | None:
    """The route whose slowest device takes the least time; of several, the fastest for one token.

    The least possible limit is one of finitely many stage times. It is found by bisection with
    `fits`. Then `best_route` searches among the ranges that keep this limit. The time in which a
    link is busy is left out: on a home network it is a small part of the time that a stage
    computes.
    """
    limits = sorted(_stage_times(problem))
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(_limited(problem, limits[middle]), stop):
            high = middle
        else:
            low = middle + 1
    return best_route(_limited(problem, limits[low]), stop)


def _stage_times(problem: Problem) -> set[float]:
    """Every time that a stage of any route can take."""
    return {
        stop_ms - start_ms + head
        for span, head_ms in zip(problem.spans, problem.head_ms, strict=True)
        for head in (0.0, head_ms)
        for start_ms, stop_ms in combinations(span.ms, 2)
    }


def _limited(problem: Problem, limit_ms: float) -> Problem:
    spans = tuple(
        span.limited(limit_ms, limit_ms - head)
        for span, head in zip(problem.spans, problem.head_ms, strict=True)
    )
    return replace(problem, spans=spans)
