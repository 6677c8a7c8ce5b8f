"""What is said of a model that does not fit, or not so as it was asked for."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from potluck.errors import NotEnoughMemoryError, UsageError
from potluck.plan.cost import DeviceCost, LinkCost, Links, ModelShape
from potluck.plan.placement import make_plan
from potluck.plan.problems import lacking_memory

HomeOf = Callable[..., tuple[ModelShape, list[DeviceCost], dict[Any, LinkCost]]]
DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [1, 3])
def test_the_gigabytes_that_are_missing_are_enough_and_not_too_many(
    home_of: HomeOf, device_of: DeviceOf, kinds: int
) -> None:
    random = Random(9)
    seen = 0
    while seen < 40:
        shape, devices, links = home_of(random, max_layers=30, kinds=kinds)
        times = (1.0,) * kinds
        try:
            make_plan(shape, devices, links)
        except NotEnoughMemoryError as error:
            needed, available = error.data["needed"], error.data["available"]
            assert isinstance(needed, int)
            assert isinstance(available, int)
            missing = needed - available
            make_plan(shape, [*devices, device_of("new", missing, times, node="f" * 64)], links)
            with pytest.raises(NotEnoughMemoryError):
                make_plan(
                    shape, [*devices, device_of("new", missing - 1, times, node="f" * 64)], links
                )
            seen += 1


def test_two_devices_of_one_computer_are_one_worker(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Laptop"),
        device_of("Desktop", device="cuda:0"),
        device_of("Desktop", device="cuda:1"),
    ]

    with pytest.raises(UsageError, match="2 other computers were to take part, and 1 can"):
        make_plan(shape_of(), devices, links_of(devices), min_workers=2)


def test_more_computers_than_layers_cannot_take_part(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of(name) for name in ("Laptop", "Desktop", "Mac", "NAS")]

    with pytest.raises(UsageError, match="The model has 2 layers"):
        make_plan(shape_of(2), devices, links_of(devices), min_workers=3)
    assert len(make_plan(shape_of(3), devices, links_of(devices), min_workers=3).stages) == 3


def test_a_computer_too_small_for_a_layer_cannot_be_made_to_take_part(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop"), device_of("Phone", memory=19)]

    with pytest.raises(
        NotEnoughMemoryError, match=r"needs 20 B and Phone offers 19 B: 1 B"
    ) as info:
        make_plan(shape_of(), devices, links_of(devices), min_workers=1)
    assert info.value.data["computer"] == "Phone"


def test_a_model_that_fits_but_not_with_so_many_computers_says_so(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    # Each worker has room for one layer but for no end, and there are only two layers.
    devices = [device_of("Laptop"), device_of("Phone", memory=20), device_of("Tablet", memory=20)]

    with pytest.raises(UsageError, match="fits, but not so that 2 other computers take part"):
        make_plan(shape_of(2), devices, links_of(devices), min_workers=2)


def test_a_model_too_big_names_what_is_missing(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    giga = 10**9
    shape = shape_of(
        36, layer_bytes=[giga // 2], cache_bytes=(0,), embedding_bytes=giga, head_bytes=giga
    )
    devices = [device_of("Laptop", 8 * giga), device_of("Desktop", 8 * giga + giga // 4)]

    with pytest.raises(NotEnoughMemoryError, match=r"needs 20 GB .* 4 GB are missing"):
        make_plan(shape, devices, {})


def test_what_is_missing_is_known_without_any_time(home_of: HomeOf) -> None:
    random = Random(7)
    for _ in range(60):
        shape, devices, links = home_of(random)
        unmeasured = [
            replace(device, decode_ms=(0.0,) * len(device.decode_ms), head_ms=0.0)
            for device in devices
        ]
        lacking = lacking_memory(shape, unmeasured)
        if not lacking:
            make_plan(shape, devices, links)
            continue
        with pytest.raises(NotEnoughMemoryError) as caught:
            make_plan(shape, devices, links)
        assert caught.value.data["available"] == shape.model_memory - lacking


def test_no_computer_at_all_is_a_sentence(shape_of: ShapeOf) -> None:
    with pytest.raises(UsageError, match="no computer"):
        make_plan(shape_of(), [], {})
