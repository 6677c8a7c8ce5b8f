import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from potluck.plan import search, unequal
from potluck.plan.cost import Links, ModelShape, Seat
from potluck.plan.placement import make_problem
from potluck.plan.route import Problem, evaluate
from potluck.plan.search import best_route, best_slowest
from potluck.plan.spans import span_of

ShapeOf = Callable[..., ModelShape]
SeatOf = Callable[..., Seat]
LinksOf = Callable[..., Links]
ProblemOf = Callable[..., Problem]


@pytest.fixture
def uneven(shape_of: ShapeOf, problem_of: ProblemOf) -> Callable[..., Problem]:
    """Devices of such memories, and layers of two kinds in a random pattern."""

    def problem(memories: list[int], num_layers: int = 8, seed: int = 0, **changes: Any) -> Problem:
        random = Random(seed)
        kinds = [0, 1, *(random.randrange(2) for _ in range(num_layers - 2))]
        shape = shape_of(layers=kinds, layer_bytes=[10, 40])
        times = [(random.uniform(0.3, 3), random.uniform(0.3, 3)) for _ in memories]
        spans = tuple(
            span_of(shape, ms, memory) for ms, memory in zip(times, memories, strict=True)
        )
        return problem_of(
            len(memories),
            **{
                "num_layers": num_layers,
                "spans": spans,
                "rooms": tuple(span.room for span in spans),
                "layer_ms": tuple(span.ms[-1] / num_layers for span in spans),
                **changes,
            },
        )

    return problem


@pytest.mark.parametrize("seed", range(30))
def test_equal_layers_taken_for_unequal_ones_cost_the_same(
    home_of: Callable[..., tuple[ModelShape, list[Seat], Links]], seed: int
) -> None:
    random = Random(seed)
    shape, seats, links = home_of(random, max_seats=6, max_layers=16)
    equal = make_problem(shape, seats, links)
    spans = tuple(span_of(shape, seat.decode_ms, seat.memory) for seat in seats)

    for find in (best_route, best_slowest):
        fast, slow = find(equal), find(replace(equal, spans=spans))
        assert (fast is None) == (slow is None)
        if fast and slow:
            assert slow.ms == pytest.approx(fast.ms)
            assert slow.exact
    some = unequal.any_route(replace(equal, spans=spans))
    assert search.fits(equal) == (some is not None)
    assert some is None or evaluate(equal, some) is not None


def test_devices_that_are_required_take_part(uneven: Callable[..., Problem]) -> None:
    route = best_route(uneven([1000] * 4, required=frozenset({1, 3})))

    assert route is not None
    assert sorted(route.seats) == [1, 3]


@pytest.mark.parametrize("seed", range(20))
def test_a_route_that_is_found_without_looking_at_all_sets_is_allowed_and_fits(
    uneven: Callable[..., Problem], seed: int
) -> None:
    random = Random(seed)
    problem = uneven(
        [random.choice([45, 70, 110, 160]) for _ in range(6)], seed=seed, min_workers=2
    )

    some = unequal.some_route(problem)

    assert some is not None
    route = evaluate(problem, some)
    assert route is not None
    assert unequal.any_route(problem) is not None
    best = best_route(problem)
    assert best is not None
    assert best.ms <= route.ms + 1e-9


def test_what_does_not_fit_has_no_route(uneven: Callable[..., Problem]) -> None:
    problem = uneven([30, 30, 30])

    assert unequal.any_route(problem) is None
    assert unequal.some_route(problem) is None
    assert best_route(problem) is None
    assert best_slowest(problem) is None


def test_where_only_one_order_fits_it_is_found(shape_of: ShapeOf, problem_of: ProblemOf) -> None:
    # Twelve devices with room for the own layer of each and no byte more, given in reverse.
    shape = shape_of(
        layers=range(12), layer_bytes=range(12, 0, -1), embedding_bytes=0, head_bytes=0
    )
    spans = tuple(span_of(shape, (1.0,) * 12, memory) for memory in range(11, 23))
    problem = problem_of(12, spans=spans, rooms=tuple(span.room for span in spans))

    assert unequal.any_route(problem) == tuple(range(11, -1, -1))
    route = best_route(problem)  # too many devices to be proven, and still found
    assert route is not None
    assert route.seats == tuple(range(11, -1, -1))


@pytest.mark.slow
@pytest.mark.parametrize("find", [best_route, best_slowest])
def test_eleven_devices_and_eighty_layers_are_planned_in_reasonable_time(
    uneven: Callable[..., Problem], find: Callable[[Problem], object]
) -> None:
    problem = uneven([400] * 11, num_layers=80)

    start = time.process_time()
    assert find(problem) is not None
    assert time.process_time() - start < 10  # some 0.5 s on a machine of 2024, ours and idle
