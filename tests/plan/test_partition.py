from collections.abc import Callable
from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from potluck.plan.cost import ModelShape
from potluck.plan.partition import Room, fill, missing_memory, room_of

CAPS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.5, 1.0, 2.0])), max_size=4)


@given(num_layers=st.integers(1, 7), devices=CAPS)
def test_filling_is_as_good_as_the_best_of_all_divisions(
    num_layers: int, devices: list[tuple[int, float]]
) -> None:
    caps = [cap for cap, _ in devices]
    layer_ms = [ms for _, ms in devices]
    costs = [
        sum(n * ms for n, ms in zip(counts, layer_ms, strict=True))
        for counts in product(*(range(1, cap + 1) for cap in caps))
        if sum(counts) == num_layers
    ]

    counts = fill(num_layers, layer_ms, caps)

    if counts is None:
        assert not costs
    else:
        assert sum(counts) == num_layers
        assert all(1 <= n <= cap for n, cap in zip(counts, caps, strict=True))
        assert sum(n * ms for n, ms in zip(counts, layer_ms, strict=True)) == min(costs)


def test_room_is_whole_layers_and_never_more_than_the_model_has(
    shape_of: Callable[..., ModelShape],
) -> None:
    shape = shape_of(3)

    assert room_of(shape, 39).middle == 1
    assert room_of(shape, 40).middle == 2
    assert room_of(shape, 54).first == 1
    assert room_of(shape, 10).only == 0
    assert room_of(shape, 10**9).only == 3


def test_room_depends_on_the_place(shape_of: Callable[..., ModelShape]) -> None:
    room = room_of(shape_of(9), 100)

    assert room == Room(middle=5, first=4, last=4, only=3)
    assert room.at(first=True, last=False) == 4
    assert room.at(first=True, last=True) == 3
    assert room.limited(3, 2) == Room(middle=3, first=3, last=2, only=2)


@given(
    num_layers=st.integers(1, 8),
    memories=st.lists(st.integers(0, 130), max_size=3),
    ends=st.tuples(st.integers(0, 50), st.integers(0, 50)),
    tied=st.booleans(),
)
def test_the_missing_memory_is_exactly_what_a_further_computer_needs(
    shape_of: Callable[..., ModelShape],
    num_layers: int,
    memories: list[int],
    ends: tuple[int, int],
    tied: bool,
) -> None:
    shape = shape_of(num_layers, embedding_bytes=ends[0], head_bytes=ends[1], tied=tied)
    if fits(shape, memories):
        return

    missing = missing_memory(shape, [room_of(shape, memory) for memory in memories])

    assert fits(shape, [*memories, missing])
    assert not fits(shape, [*memories, missing - 1])


def fits(shape: ModelShape, memories: list[int]) -> bool:
    """Whether some first and last device leave room for all layers; every one named holds one."""
    devices = range(len(memories))
    if any(shape.model_memory <= memory for memory in memories):
        return True
    big = replace(shape, layers=(0,) * 1000)
    for first, last in product(devices, devices):
        if first == last:
            continue
        rooms = [
            room_of(big, memory).at(first=i == first, last=i == last)
            for i, memory in enumerate(memories)
        ]
        if rooms[first] and rooms[last] and sum(rooms) >= shape.num_layers >= 2:
            return True
    return False
