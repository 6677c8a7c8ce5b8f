from collections.abc import Callable
from itertools import pairwise

import pytest

from potluck.plan.cost import ModelShape
from potluck.plan.spans import Span, held_bytes, span_of

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
    assert span(195).only


def test_a_device_too_small_for_a_layer_goes_around_it(span: Callable[[int], Span]) -> None:
    device = span(49)

    assert device.reach == (1, 1, 2, 5, 5)
    assert device.most_layers == 2


@pytest.mark.parametrize("memory", [0, 10, 14])
def test_a_device_without_room_for_any_layer_has_no_range(
    span: Callable[[int], Span], memory: int
) -> None:
    device = span(memory)

    assert device.reach == (0, 1, 2, 3, 4)
    assert (device.first, device.last, device.only) == (0, 5, False)
    assert device.most_layers == 0


def test_a_time_limit_bounds_ranges_as_memory_does(span: Callable[[int], Span]) -> None:
    device = span(1000).limited(4.0, 2.0)

    assert device.reach == (2, 2, 4, 5, 5)
    assert (device.first, device.last, device.only) == (2, 3, False)
    assert span(1000).limited(9.0, 9.0) == span(1000)
    assert span(1000).limited(9.0, -1.0).last == 5  # its head alone takes too long


def test_a_device_holds_the_ranges_that_it_reaches_from_its_place(
    span: Callable[[int], Span],
) -> None:
    device = span(90)

    assert device.holds(range(2), first=True, last=False)
    assert not device.holds(range(3), first=True, last=False)
    assert device.holds(range(2, 5), first=False, last=False)
    assert not device.holds(range(2, 5), first=False, last=True)
    assert not device.holds(range(5), first=True, last=True)


def test_bytes_add_up_layer_by_layer(shape_of: ShapeOf) -> None:
    assert held_bytes(shape_of(layers=KINDS, layer_bytes=SIZES)) == (0, 20, 70, 120, 140, 160)


def test_without_times_a_device_has_the_same_room(span: Callable[[int], Span]) -> None:
    device = span(90)

    assert device.without_times().reach == device.reach
    assert device.without_times().ms == (0.0,) * 6


def test_a_device_is_slower_but_in_the_layers_that_it_has(span: Callable[[int], Span]) -> None:
    before = span(10_000)

    biased = before.slower_but_in(range(2), 0.5)

    times = [after - start for start, after in pairwise(biased.ms)]
    usual = [after - start for start, after in pairwise(before.ms)]
    assert times == pytest.approx([usual[0], usual[1], *(1.5 * ms for ms in usual[2:])])
    assert (biased.reach, biased.first, biased.last) == (before.reach, before.first, before.last)
