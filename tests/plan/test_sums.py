"""Of which computers sums are measured."""

from collections.abc import Callable
from dataclasses import replace

from potluck.plan.cost import DeviceCost, Links, ModelShape
from potluck.plan.sums import pairs_to_measure


def test_sums_are_measured_of_the_pairs_whose_group_would_pay_at_the_speed_of_the_wire(
    shape_of: Callable[..., ModelShape],
    device_of: Callable[..., DeviceCost],
    links_of: Callable[..., Links],
) -> None:
    shape = replace(shape_of(20), divided=(1.0,), hidden_size=1024)
    near = [device_of(name, 1000, decode_ms=1.0, prefill_ms=80.0) for name in ("A", "B", "C")]
    near.append(replace(near[0], device="cpu:1"))
    far = device_of("D", 1000, decode_ms=1.0)
    everyone = [*near, far]
    links = {
        pair: replace(link, rtt_ms=9.0 if far.node in pair else 0.4)
        for pair, link in links_of(everyone).items()
    }

    pairs = pairs_to_measure(shape, everyone, links, prefill_tokens=16)

    assert sorted(pairs) == [(0, 1), (0, 2), (0, 3), (1, 2)]  # 3 is another device of 0
    whole = replace(shape, divided=())
    assert pairs_to_measure(whole, everyone, links, prefill_tokens=16) == ()


def test_sums_of_groups_by_hand_are_measured_whatever_they_gain(
    shape_of: Callable[..., ModelShape], device_of: Callable[..., DeviceCost]
) -> None:
    devices = [device_of(name) for name in ("A", "B", "C", "D")]
    asked = [("d+a", 3), ("b", 4), ("c", 0)]

    assert pairs_to_measure(shape_of(7), devices, {}, asked, prefill_tokens=16) == ((0, 3),)
    assert pairs_to_measure(shape_of(7), devices, {}, [("e+a", 7)], prefill_tokens=16) == ()
    devices[0] = replace(devices[0], can_rank=False)  # a GPU, by hand alone
    both = [("d+a", 3), ("a+b+c", 4)]
    assert pairs_to_measure(shape_of(7), devices, {}, both, prefill_tokens=16) == ((1, 2),)
