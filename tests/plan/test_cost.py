from collections.abc import Callable
from dataclasses import replace
from math import inf, nan

import pytest

from potluck.errors import UsageError
from potluck.ids import NodeId
from potluck.plan.cost import (
    HOP_SOFTWARE_MS,
    LOCAL_HOP_MS,
    UNKNOWN_LINK,
    DeviceCost,
    LinkCost,
    ModelShape,
    check_measurements,
    hop_between,
)

A, B = NodeId("a" * 64), NodeId("b" * 64)


def test_memory_counts_weights_and_the_cache_of_every_session(
    shape_of: Callable[..., ModelShape],
) -> None:
    shape = shape_of(layer_bytes=[100], cache_bytes=(21,), sessions=2)

    assert shape.layer_memory == (100 + 3 * 7 * 2,)
    assert shape.stage_memory(range(4), first=True, last=False) == 4 * 142 + 15
    assert shape.stage_memory(range(4), first=False, last=True) == 4 * 142 + 20


def test_a_shared_matrix_counts_once_on_one_device_and_twice_on_two(
    shape_of: Callable[..., ModelShape],
) -> None:
    tied, untied = shape_of(tied=True), shape_of(tied=False)

    assert tied.stage_memory(range(0), first=True, last=True) == 20
    assert untied.stage_memory(range(0), first=True, last=True) == 35
    assert tied.stage_memory(range(0), first=True, last=False) == 15


def test_a_stage_of_layers_that_differ_occupies_what_its_own_layers_do(
    shape_of: Callable[..., ModelShape],
) -> None:
    shape = shape_of(layers=[0, 1, 1, 0], layer_bytes=[10, 70])

    assert shape.num_layers == 4
    assert shape.layer_memory == (20, 80)
    assert shape.smallest_layer_memory == 20
    assert shape.stage_memory(range(1, 4), first=False, last=False) == 180
    assert shape.model_memory == 235


def test_a_hop_is_half_a_round_trip_the_bytes_and_our_own_code() -> None:
    hop = hop_between({(A, B): LinkCost(rtt_ms=4.0, bytes_per_s=1e6)}, A, B)

    assert hop.ms(2000) == pytest.approx(2 + 2 + HOP_SOFTWARE_MS)


def test_a_hop_inside_a_computer_costs_no_network() -> None:
    assert hop_between({}, A, A).ms(10**9) == LOCAL_HOP_MS


def test_a_link_measured_one_way_counts_for_both() -> None:
    links = {(A, B): LinkCost(rtt_ms=4.0, bytes_per_s=1e6)}

    assert hop_between(links, B, A) == hop_between(links, A, B)


def test_a_link_that_nobody_measured_counts_as_a_poor_one() -> None:
    assert hop_between({}, A, B) == hop_between({(A, B): UNKNOWN_LINK}, A, B)


@pytest.mark.parametrize(
    "change",
    [
        {"memory": -1},
        {"decode_ms": (nan,)},
        {"decode_ms": (-1.0,)},
        {"prefill_ms": (inf,)},
        {"decode_ms": ()},
        {"prefill_ms": (1.0, 1.0)},
        {"head_ms": nan},
    ],
)
def test_a_computer_that_reports_nonsense_is_named(
    shape_of: Callable[..., ModelShape],
    device_of: Callable[..., DeviceCost],
    change: dict[str, object],
) -> None:
    device = replace(device_of("Laptop"), **change)  # pyright: ignore[reportArgumentType]

    with pytest.raises(UsageError, match="Laptop reports"):
        check_measurements(shape_of(), (device,), {})


@pytest.mark.parametrize(("rtt_ms", "rate"), [(nan, 1e6), (-1, 1e6), (1, 0), (1, -5), (1, inf)])
def test_a_link_that_cannot_be_is_refused(
    shape_of: Callable[..., ModelShape], rtt_ms: float, rate: float
) -> None:
    with pytest.raises(UsageError, match="Measure it again"):
        check_measurements(shape_of(), (), {(A, B): LinkCost(rtt_ms=rtt_ms, bytes_per_s=rate)})


def test_a_model_without_layers_is_refused(shape_of: Callable[..., ModelShape]) -> None:
    with pytest.raises(UsageError, match="no layers"):
        check_measurements(shape_of(0), (), {})
