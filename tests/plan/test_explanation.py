from collections.abc import Callable
from dataclasses import replace

import pytest

from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, LinkCost, Links, ModelShape, cabled
from potluck.plan.explanation import rate
from potluck.plan.placement import make_plan

DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]


def lines(
    shape: ModelShape, devices: list[DeviceCost], links: Links, **options: object
) -> list[str]:
    return make_plan(shape, devices, links, **options).explanation.split("\n")  # pyright: ignore[reportArgumentType]


def test_a_shared_model_is_explained_computer_by_computer(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Laptop", 700, 3.0),
        device_of("Desktop", 500, 0.5),
        device_of("Mac", 700, 1.0),
    ]

    assert lines(shape_of(), devices, links_of(devices)) == [
        "Desktop and Mac work together: about 37.8 tokens/s for one user. A token takes 24 ms of"
        " computing and 2.5 ms on the links.",
        "Desktop has layers 0 to 23: it is the fastest, and its memory holds no more.",
        "Mac has layers 24 to 35: the faster ones are full.",
        "Laptop gets nothing: with it a token would take 28 ms instead of 26 ms.",
        "Laptop cannot hold the model alone: 55 B are missing."
        " Desktop cannot hold the model alone: 255 B are missing."
        " Mac cannot hold the model alone: 55 B are missing.",
    ]


def test_one_computer_that_does_it_alone_is_explained(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop", decode_ms=1.0), device_of("Phone", 15)]

    text = lines(shape_of(), devices, links_of(devices))

    assert text[0].startswith("Laptop does it alone: about 27.2 tokens/s for one user.")
    assert text[0].endswith(
        "36 ms of computing and 0.7 ms on its way through Potluck; no link: all is on this computer."
    )
    assert text[1] == "Laptop has all 36 layers: it holds the whole model."
    assert text[2] == "Phone gets nothing: one layer takes 20 B and it offers 15 B."
    assert text[3].startswith("Laptop alone would give 27.2 tokens/s. Phone cannot")


def test_a_single_computer_has_nothing_to_compare_with(
    device_of: DeviceOf, shape_of: ShapeOf
) -> None:
    assert lines(shape_of(), [device_of("Laptop")], {})[1:] == ["Laptop has all 36 layers."]


def test_a_computer_that_only_had_to_take_part_has_one_layer(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop"), device_of("Old PC", decode_ms=9.0)]

    text = lines(shape_of(), devices, links_of(devices), min_workers=1)

    assert "Old PC has layer 0: it takes as little as possible, being slower." in text or (
        "Old PC has layer 35: it takes as little as possible, being slower." in text
    )


def test_layers_by_hand_are_compared_with_the_best(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop", decode_ms=2.0), device_of("Desktop", decode_ms=0.5)]

    text = lines(shape_of(), devices, links_of(devices), layers=[("Laptop", 30), ("Desktop", 6)])

    assert text[0].startswith("The layers are shared out as you asked: about")
    assert text[1:3] == ["Laptop has layers 0 to 29.", "Desktop has layers 30 to 35."]
    assert text[3].startswith("Faster would be Desktop 36: about")


def test_the_best_by_hand_needs_no_advice(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop", decode_ms=2.0), device_of("Desktop", decode_ms=0.5)]

    text = lines(shape_of(), devices, links_of(devices), layers=[("Desktop", 36)])

    assert not any("Faster" in line for line in text)


def test_an_equal_device_is_no_gain(device_of: DeviceOf, shape_of: ShapeOf) -> None:
    devices = [device_of("Desktop", device="cuda:0"), device_of("Desktop", device="cuda:1")]

    text = lines(shape_of(), devices, {})

    assert text[0].startswith("Desktop does it alone")
    assert text[2] == "Desktop/cuda:1 gets nothing: with it a token would not be faster."


def test_two_devices_of_one_computer_are_one_computer(
    device_of: DeviceOf, shape_of: ShapeOf
) -> None:
    devices = [
        device_of("Desktop", 500, device="cuda:0"),
        device_of("Desktop", 500, device="cuda:1"),
    ]

    text = lines(shape_of(), devices, {})

    assert text[0].startswith("Desktop does it alone")
    assert text[1].startswith("Desktop/cuda:")
    assert len(text) == 3


def test_where_there_is_no_share_left_the_plan_says_so(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Laptop"),
        device_of("Phone", 20),
    ]  # room for the only layer, but for no end

    text = lines(shape_of(1), devices, links_of(devices))

    assert text[2] == (
        "Phone gets nothing: its memory or the number of layers leaves no share for it."
    )


def test_several_users_are_told_what_they_get_together(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Laptop", prefill_ms=256.0),
        device_of("Desktop", prefill_ms=256.0),
        device_of("Old PC", decode_ms=90.0, prefill_ms=23_040.0),
    ]

    text = lines(shape_of(), devices, links_of(devices), users=4)

    assert text[0].endswith(" For 4 at once: 55.6 tokens/s together.")
    assert text[1].endswith("with more it would keep the others waiting.")
    assert text[3] == "Old PC gets nothing: with it 4 at once would get no more tokens."


def test_no_words_but_those_of_a_home(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop", 400), device_of("Desktop", 500), device_of("Mac", 300)]

    text = make_plan(shape_of(), devices, links_of(devices)).explanation.casefold()

    assert not any(word in text for word in ("!", "node", "shard", "worker", "stage", "device"))


def test_layers_that_differ_are_explained(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    # Eight small layers, then eight big ones that only the desktop is quick with.
    shape = shape_of(layers=[0] * 8 + [1] * 8, layer_bytes=[10, 90])
    devices = [
        device_of("Laptop", 2000, (0.5, 9.0)),
        device_of("Desktop", 830, (3.0, 1.0)),
        device_of("Phone", 15, (9.0, 9.0)),
    ]

    text = lines(shape, devices, links_of(devices))

    assert text[1] == (
        "Laptop has layers 0 to 7: the layers differ, and cut here a token is fastest."
    )
    assert text[2] == "Desktop has layers 8 to 15: it is the fastest, and its memory holds no more."
    assert text[3] == "Phone gets nothing: one layer takes 20 B and it offers 15 B."
    assert "Desktop cannot hold the model alone: 165 B are missing." in text[4]


@pytest.mark.parametrize(("value", "text"), [(7.86, "7.9"), (99.96, "100.0"), (118.4, "118")])
def test_rates_have_as_many_digits_as_one_reads(value: float, text: str) -> None:
    assert rate(value) == text


# --- Wi-Fi


def wifi_lines(
    shape: ModelShape, devices: list[DeviceCost], links: Links, *names: str
) -> list[str]:
    told = [replace(device, on_wifi=device.name in names) for device in devices]
    return [line for line in lines(shape, told, links) if "Wi-Fi" in line]


def test_who_is_on_wifi_is_named_with_what_a_cable_would_gain(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Desktop", 500, 0.5), device_of("Laptop", 700, 1.0)]
    slow = links_of(devices, rtt_ms=30.0, bytes_per_s=2e6)

    assert lines(shape_of(), devices, slow)[0].endswith(
        "24 ms of computing and 35 ms on the links."
    )
    assert wifi_lines(shape_of(), devices, slow, "Laptop") == [
        "Laptop is on Wi-Fi: with a cable a token would take about 26 ms instead of 59 ms."
    ]
    assert wifi_lines(shape_of(), devices, slow, "Desktop", "Laptop") == [
        "Desktop and Laptop are on Wi-Fi: with cables a token would take about 26 ms instead of 59 ms."
    ]


def test_nothing_is_said_of_wifi_where_a_cable_would_gain_nothing_or_nobody_says_so(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Desktop", 500, 0.5), device_of("Laptop", 700, 1.0)]
    slow, good = links_of(devices, rtt_ms=30.0, bytes_per_s=2e6), links_of(devices, rtt_ms=1.5)

    assert wifi_lines(shape_of(), devices, slow) == []  # no computer says so
    assert wifi_lines(shape_of(), devices, good, "Laptop") == []
    alone = [device_of("Desktop"), device_of("Laptop", 15)]
    assert wifi_lines(shape_of(), alone, links_of(alone, rtt_ms=30.0), "Laptop") == []


def test_a_wifi_that_is_better_than_a_cable_stays_as_it_is() -> None:
    desk, laptop = NodeId("1" * 64), NodeId("2" * 64)
    links = {(desk, laptop): LinkCost(rtt_ms=3.0, bytes_per_s=2e8)}

    assert cabled(links, {laptop}) == {(desk, laptop): LinkCost(rtt_ms=0.6, bytes_per_s=2e8)}
    assert cabled(links, {NodeId("3" * 64)}) == links
