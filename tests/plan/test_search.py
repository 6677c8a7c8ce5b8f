from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from potluck.plan.cost import ModelShape
from potluck.plan.route import TIE_MS, Problem
from potluck.plan.search import best_including, best_route, fits, never
from potluck.plan.spans import Span, held_bytes, span_of

ShapeOf = Callable[..., ModelShape]
ProblemOf = Callable[..., Problem]


def test_among_equals_the_fewest_devices_win(problem_of: ProblemOf) -> None:
    route = best_route(problem_of(4, hop_ms=0.0), never)

    assert route is not None
    assert len(route.devices) == 1


def test_devices_that_are_required_take_part(problem_of: ProblemOf) -> None:
    route = best_route(problem_of(4, required=frozenset({1, 3})), never)

    assert route is not None
    assert sorted(route.devices) == [1, 3]


def test_the_way_around_a_bad_link_is_taken(problem_of: ProblemOf) -> None:
    far = ((0, 9, 1.0), (9, 0, 1.0), (1.0, 1.0, 0))
    problem = problem_of(3, room=4, hop_ms=1.0)

    route = best_route(replace(problem, hop_ms=far), never)

    assert route is not None
    assert route.devices in ((0, 2, 1), (1, 2, 0))


def test_what_does_not_fit_has_no_route(problem_of: ProblemOf, uneven: ProblemOf) -> None:
    for problem in (problem_of(3, room=3), problem_of(3, room=0), uneven([30, 30, 30])):
        assert best_route(problem, never) is None
        assert not fits(problem, never)


def test_a_further_device_is_weighed_beside_any_number_of_others(
    problem_of: ProblemOf, span_with_room: Callable[..., Span]
) -> None:
    few, many = problem_of(4, room=4), problem_of(16, num_layers=15, room=1)
    small = span_with_room(15, 0)

    for problem in (few, many):
        route = best_route(problem, never)
        assert route is not None
        further = next(i for i in range(problem.size) if i not in route.devices)
        other = best_including(problem, route, further, never)
        assert other is not None
        assert len(route.devices) in other.devices  # as it is numbered there
        spans = tuple(small if i == further else span for i, span in enumerate(problem.spans))
        assert best_including(replace(problem, spans=spans), route, further, never) is None


def test_where_only_one_order_fits_it_is_found(shape_of: ShapeOf, problem_of: ProblemOf) -> None:
    # Twelve devices with room for the own layer of each and no byte more, given in reverse.
    shape = shape_of(
        layers=range(12), layer_bytes=range(12, 0, -1), embedding_bytes=0, head_bytes=0
    )
    spans = tuple(span_of(shape, (1.0,) * 12, memory) for memory in range(11, 23))

    route = best_route(problem_of(12, spans=spans, held=held_bytes(shape)), never)

    assert route is not None
    assert route.devices == tuple(range(11, -1, -1))
    assert route.is_optimal


@pytest.mark.parametrize("layers", ["equal", "unequal"])
def test_a_home_is_planned_exactly_whatever_its_layers(
    problem_of: ProblemOf, uneven: ProblemOf, layers: str
) -> None:
    problem = many(problem_of, 12) if layers == "equal" else uneven([400] * 12, num_layers=60)

    route = best_route(problem, never)

    assert route is not None
    assert route.bound_ms == route.ms


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_more_devices_than_are_exact_have_a_bound_that_holds(
    problem_of: ProblemOf, seed: int
) -> None:
    problem = many(problem_of, 14, seed)
    fewer = [[0, *some] for some in combinations(range(1, 14), 11)]

    route = best_route(problem, never)

    assert route is not None
    assert 0.8 * route.ms < route.bound_ms <= route.ms
    for some in Random(seed).sample(fewer, 3):  # exact, and of fewer devices
        exact = best_route(problem.only(some), never)
        assert exact is not None
        assert exact.is_optimal
        assert exact.ms >= route.bound_ms - TIE_MS


def test_a_search_that_is_stopped_answers_with_what_it_has(uneven: ProblemOf) -> None:
    problem = uneven([170] * 12, num_layers=40)

    stopped, whole = best_route(problem, lambda: True), best_route(problem, never)

    assert stopped is not None
    assert whole is not None
    assert whole.is_optimal
    assert not stopped.is_optimal
    assert stopped.bound_ms <= whole.ms <= stopped.ms


def test_the_order_in_which_many_devices_are_given_makes_no_difference(uneven: ProblemOf) -> None:
    problem = uneven([170] * 15, num_layers=40)
    shuffled = Random(5).sample(range(1, 15), 14)

    route, other = best_route(problem, never), best_route(problem.only([0, *shuffled]), never)

    assert route is not None
    assert other is not None
    assert other.ms == pytest.approx(route.ms)
    assert other.bound_ms == pytest.approx(route.bound_ms)


def test_many_devices_with_hardly_enough_memory_are_found_a_route(uneven: ProblemOf) -> None:
    problem = uneven([110] * 16, num_layers=40, seed=3)

    route = best_route(problem, never)

    assert route is not None
    assert sum(route.counts) == 40


def test_more_devices_than_can_be_counted_have_a_route_among_the_fastest(
    problem_of: ProblemOf,
) -> None:
    speeds = [1.0 + k % 3 for k in range(70)]

    route = best_route(problem_of(70, num_layers=8, room=4, hop_ms=0.1, layer_ms=speeds), never)

    assert route is not None
    assert {speeds[i] for i in route.devices} == {1.0}
    assert 0.8 * route.ms < route.bound_ms <= route.ms


def test_without_any_device_there_is_no_route(problem_of: ProblemOf) -> None:
    assert best_route(problem_of(3).only([]), never) is None


def many(problem_of: ProblemOf, size: int, seed: int = 1) -> Problem:
    random = Random(seed)
    speeds = [random.uniform(0.3, 3) for _ in range(size)]
    hops = tuple(tuple(random.uniform(0.2, 4) for _ in speeds) for _ in speeds)
    return replace(problem_of(size, num_layers=60, room=7, layer_ms=speeds), hop_ms=hops)
