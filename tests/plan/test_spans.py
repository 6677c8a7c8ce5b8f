from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.plan.cost import ModelShape
from potluck.plan.spans import Span, begin, divide, extend, finish, span_of

ShapeOf = Callable[..., ModelShape]

# Layers of 20 and 50 bytes with their cache, an embedding of 15 and a head of 20.
KINDS = [0, 1, 1, 0, 0]
SIZES = [10, 40]
TIMES = (1.0, 3.0)


@pytest.fixture
def span(shape_of: ShapeOf) -> Callable[[int], Span]:
    return lambda memory: span_of(shape_of(layers=KINDS, layer_bytes=SIZES), TIMES, memory)


def test_how_far_a_device_reaches_depends_on_where_it_begins(span: Callable[[int], Span]) -> None:
    device = span(90)

    assert device.ms == (0.0, 1.0, 4.0, 7.0, 8.0, 9.0)
    assert device.reach == (2, 2, 5, 5, 5)
    assert device.first == 2
    assert device.last == 3
    assert not device.only
    assert device.takes_any
    assert span(195).only


def test_a_device_too_small_for_a_layer_goes_around_it(span: Callable[[int], Span]) -> None:
    device = span(49)

    assert device.reach == (1, 1, 2, 5, 5)
    assert not device.takes_any
    assert device.room.middle == 2


@pytest.mark.parametrize("memory", [0, 10, 14])
def test_a_device_without_room_for_any_layer_has_no_range(
    span: Callable[[int], Span], memory: int
) -> None:
    device = span(memory)

    assert device.reach == (0, 1, 2, 3, 4)
    assert (device.first, device.last, device.only) == (0, 5, False)
    assert begin(device) == [inf] * 6
    assert finish(begin(span(90)), device) == inf


def test_a_time_limit_bounds_ranges_as_memory_does(span: Callable[[int], Span]) -> None:
    device = span(1000).limited(4.0, 2.0)

    assert device.reach == (2, 2, 4, 5, 5)
    assert (device.first, device.last, device.only) == (2, 3, False)
    assert span(1000).limited(9.0, 9.0) == span(1000)
    assert span(1000).limited(9.0, -1.0).last == 5  # its head alone takes too long


def test_a_further_device_begins_where_the_least_time_is_left(
    span: Callable[[int], Span], shape_of: ShapeOf
) -> None:
    fast = span_of(shape_of(layers=KINDS, layer_bytes=SIZES), (0.5, 0.5), 120)

    ways = extend(begin(span(90), 2.0), fast)

    assert ways == [inf, inf, 3.5, 4.0, 4.5, 7.5]


@given(
    kinds=st.lists(st.integers(0, 2), min_size=1, max_size=7),
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    devices=st.lists(
        st.tuples(st.integers(0, 150), st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, 2.25])] * 3)),
        min_size=1,
        max_size=4,
    ),
)
def test_dividing_is_as_good_as_the_best_of_all_divisions(
    shape_of: ShapeOf,
    kinds: list[int],
    sizes: tuple[int, ...],
    devices: list[tuple[int, tuple[float, ...]]],
) -> None:
    shape = shape_of(layers=kinds, layer_bytes=sizes)
    costs = [
        sum(ms[kinds[i]] for own, (_, ms) in zip(shares, devices, strict=True) for i in own)
        for shares in divisions(len(kinds), len(devices))
        if all_fit(shape, shares, [memory for memory, _ in devices])
    ]

    counts = divide([span_of(shape, ms, memory) for memory, ms in devices])

    if counts is None:
        assert not costs
    else:
        cuts = [0]
        for count in counts:
            cuts.append(cuts[-1] + count)
        shares = [range(a, b) for a, b in pairwise(cuts)]
        assert all(shares)
        assert all_fit(shape, shares, [memory for memory, _ in devices])
        taken = sum(ms[kinds[i]] for own, (_, ms) in zip(shares, devices, strict=True) for i in own)
        assert taken == pytest.approx(min(costs))


def divisions(total: int, parts: int) -> Iterator[list[range]]:
    for cuts in combinations(range(1, total), parts - 1):
        yield [range(a, b) for a, b in pairwise((0, *cuts, total))]


def all_fit(shape: ModelShape, shares: Sequence[range], memories: Sequence[int]) -> bool:
    last = len(shares) - 1
    return all(
        shape.stage_memory(own, first=k == 0, last=k == last) <= memory
        for k, (own, memory) in enumerate(zip(shares, memories, strict=True))
    )
