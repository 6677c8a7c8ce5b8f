from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from math import inf
from random import Random
from typing import Any

import pytest

from potluck.errors import NotEnoughMemoryError, PlanError, UsageError, format_bytes
from potluck.plan.cost import (
    TOKEN_MESSAGE_BYTES,
    DeviceCost,
    LinkCost,
    Links,
    ModelShape,
    hop_between,
)
from potluck.plan.labels import computer_names, labels
from potluck.plan.placement import make_plan
from potluck.plan.stages import Plan

HomeOf = Callable[..., tuple[ModelShape, list[DeviceCost], dict[Any, LinkCost]]]
DeviceOf = Callable[..., DeviceCost]
ShapeOf = Callable[..., ModelShape]
LinksOf = Callable[..., Links]


def divisions(total: int, parts: int) -> Iterator[list[range]]:
    for cuts in combinations(range(1, total), parts - 1):
        yield [range(a, b) for a, b in zip((0, *cuts), (*cuts, total), strict=True)]


def every_plan(
    shape: ModelShape, devices: Sequence[DeviceCost], links: Links, min_workers: int
) -> Iterator[float]:
    """The token's time in every order and every division that is allowed."""
    master = devices[0].node
    for size in range(1, min(len(devices), shape.num_layers) + 1):
        for order in permutations(devices, size):
            if len({device.node for device in order} - {master}) < min_workers:
                continue
            nodes = [master, *(device.node for device in order), master]
            sizes = [TOKEN_MESSAGE_BYTES, *[shape.hidden_bytes] * (size - 1), TOKEN_MESSAGE_BYTES]
            network = sum(
                hop_between(links, a, b).ms(n)
                for a, b, n in zip(nodes, nodes[1:], sizes, strict=False)
            )
            for own in divisions(shape.num_layers, size):
                memory = [
                    shape.stage_memory(layers, first=k == 0, last=k == size - 1)
                    for k, layers in enumerate(own)
                ]
                if all(m <= device.memory for m, device in zip(memory, order, strict=True)):
                    ms = [
                        sum(device.decode_ms[shape.layers[layer]] for layer in layers)
                        for layers, device in zip(own, order, strict=True)
                    ]
                    ms[-1] += order[-1].head_ms
                    yield sum(ms) + network


def check(plan: Plan, shape: ModelShape, devices: Sequence[DeviceCost], links: Links) -> None:
    """What is true of every plan."""
    assert [i for stage in plan.stages for i in stage.layers] == list(range(shape.num_layers))
    assert [stage.embedding for stage in plan.stages] == [True] + [False] * (len(plan.stages) - 1)
    assert [stage.head for stage in plan.stages] == [False] * (len(plan.stages) - 1) + [True]
    by_device = {(device.node, device.device): device for device in devices}
    for stage in plan.stages:
        assert stage.layers
        assert stage.memory <= by_device[stage.node, stage.device].memory
        assert stage.memory == shape.stage_memory(
            stage.layers, first=stage.embedding, last=stage.head
        )
    assert len({(stage.node, stage.device) for stage in plan.stages}) == len(plan.stages)
    sizes = [TOKEN_MESSAGE_BYTES] + [shape.hidden_bytes] * (len(plan.stages) - 1)
    network = sum(
        hop.ms(n) for hop, n in zip(plan.hops, [*sizes, TOKEN_MESSAGE_BYTES], strict=True)
    )
    assert plan.token_ms == pytest.approx(network + sum(s.predicted_ms for s in plan.stages))
    assert plan.lower_bound_ms <= plan.token_ms
    assert set(plan.alone) == {device.node for device in devices}


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_no_order_and_no_division_is_faster(home_of: HomeOf, seed: int, kinds: int) -> None:
    random = Random(seed)
    for _ in range(300):
        shape, devices, links = home_of(random, kinds=kinds)
        min_workers = random.choice([0, 0, 0, 1, 2])
        best = min(every_plan(shape, devices, links, min_workers), default=None)
        try:
            plan = make_plan(shape, devices, links, min_workers=min_workers)
        except (PlanError, UsageError):
            assert best is None
            continue
        check(plan, shape, devices, links)
        assert best is not None
        assert plan.token_ms == pytest.approx(best)
        assert plan.optimal
        assert len({s.node for s in plan.stages} - {devices[0].node}) >= min_workers


def every_period(
    shape: ModelShape, devices: Sequence[DeviceCost], links: Links, users: int
) -> Iterator[float]:
    """The period of every order, every division and every number of groups."""
    master = devices[0].node
    for groups in range(1, users + 1):
        tokens = -(-users // groups)
        for size in range(1, min(len(devices), shape.num_layers) + 1):
            for order in permutations(devices, size):
                nodes = [master, *(device.node for device in order), master]
                sizes = [
                    TOKEN_MESSAGE_BYTES, *[shape.hidden_bytes] * (size - 1), TOKEN_MESSAGE_BYTES
                ]  # fmt: skip
                network = sum(
                    hop_between(links, a, b).ms(tokens * n)
                    for a, b, n in zip(nodes, nodes[1:], sizes, strict=False)
                )
                for own in divisions(shape.num_layers, size):
                    ms = [
                        sum(
                            shape.batch_ms(
                                (kind,),
                                device.decode_ms[kind],
                                device.prefill_ms[kind],
                                tokens=tokens,
                                measured_tokens=16,
                            )
                            for kind in shape.layers[layers.start : layers.stop]
                        )
                        for layers, device in zip(own, order, strict=True)
                    ]
                    ms[-1] += order[-1].head_ms
                    memory = (
                        shape.stage_memory(layers, first=k == 0, last=k == size - 1)
                        for k, layers in enumerate(own)
                    )
                    if all(m <= device.memory for m, device in zip(memory, order, strict=True)):
                        yield max(sum(ms) + network, groups * max(ms))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("users", [2, 5])
def test_several_users_get_no_more_tokens_in_any_other_way(
    home_of: HomeOf, users: int, kinds: int
) -> None:
    random = Random(users)
    for _ in range(100):
        shape, devices, links = home_of(random, kinds=kinds)
        best = min(every_period(shape, devices, links, users), default=None)
        try:
            plan = make_plan(shape, devices, links, users=users, measured_tokens=16)
        except PlanError:
            assert best is None
            continue
        check(plan, shape, devices, links)
        assert best is not None
        assert 1000 * users / plan.users_tokens_per_s == pytest.approx(best, rel=0.002, abs=1e-5)


def test_one_user_gets_one_fast_computer_and_several_get_all(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of(name, prefill_ms=128.0) for name in ("Desk", "Laptop")]
    shape, links = shape_of(), links_of(devices)

    one, several = (
        make_plan(shape, devices, links, users=users, measured_tokens=128) for users in (1, 8)
    )

    assert [len(plan.stages) for plan in (one, several)] == [1, 2]
    assert one.users_tokens_per_s == pytest.approx(one.predicted_tokens_per_s)
    assert several.users_tokens_per_s > 1.8 * one.users_tokens_per_s
    assert several.predicted_tokens_per_s < one.predicted_tokens_per_s


def token_ms(*args: Any, **options: Any) -> float:
    try:
        return make_plan(*args, **options).token_ms
    except NotEnoughMemoryError:
        return inf


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [1, 3])
def test_laws_of_planning(home_of: HomeOf, device_of: DeviceOf, kinds: int) -> None:
    random = Random(7)
    for _ in range(60):
        shape, devices, links = home_of(random, max_devices=5, max_layers=20, kinds=kinds)
        ms = token_ms(shape, devices, links)

        richer = [
            replace(device, memory=device.memory + random.randint(0, 90)) for device in devices
        ]
        assert token_ms(shape, richer, links) <= ms + 1e-9, "more memory hurts"

        times = tuple(random.random() for _ in range(kinds))
        more = [*devices, device_of("another", random.randint(0, 200), times, node="f" * 64)]
        assert token_ms(shape, more, links) <= ms + 1e-9, "one more computer hurts"

        shuffled = [devices[0], *random.sample(devices[1:], len(devices) - 1)]
        assert token_ms(shape, shuffled, links) == pytest.approx(ms), "the order given matters"

        renamed = [replace(device, name=f"z{random.random()}") for device in devices]
        assert token_ms(shape, renamed, links) == pytest.approx(ms), "names matter"

        faster = [
            replace(device, decode_ms=tuple(ms / 2 for ms in device.decode_ms))
            for device in devices
        ]
        assert token_ms(shape, faster, links) <= ms + 1e-9, "faster computers hurt"


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [1, 3])
def test_no_computer_alone_is_faster_than_the_plan(home_of: HomeOf, kinds: int) -> None:
    random = Random(8)
    for _ in range(60):
        shape, devices, links = home_of(random, kinds=kinds)
        try:
            plan = make_plan(shape, devices, links)
        except NotEnoughMemoryError:
            continue
        for rate in plan.alone.values():
            assert rate is None or rate <= plan.predicted_tokens_per_s * (1 + 1e-9)
        if len({stage.node for stage in plan.stages}) == 1:
            assert plan.alone[plan.stages[0].node] == pytest.approx(plan.predicted_tokens_per_s)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[0] * 40, [0, 1] * 20])
def test_many_computers_are_planned_well_and_the_rest_is_said(
    device_of: DeviceOf, shape_of: ShapeOf, layers: list[int]
) -> None:
    random = Random(3)
    shape = shape_of(layers=layers, layer_bytes=[10, 12])
    speeds = [random.uniform(0.3, 3) for _ in range(20)]
    devices = [
        device_of(
            f"pc {k}",
            random.randint(60, 200),
            (ms, random.uniform(0.8, 1.4) * ms),
            node=f"{k:064x}",
        )
        for k, ms in enumerate(speeds)
    ]
    links = {
        (a.node, b.node): LinkCost(rtt_ms=random.uniform(0.2, 3), bytes_per_s=1e8)
        for a in devices
        for b in devices
        if a is not b
    }

    plan = make_plan(shape, devices, links)

    check(plan, shape, devices, links)
    gap = [line for line in plan.explanation.split("\n") if "faster." in line and "ways" in line]
    assert bool(gap) != plan.optimal
    assert plan.token_ms <= make_plan(shape, devices[:11], links).token_ms
    assert plan.token_ms < plan.lower_bound_ms * 1.15


def test_fewer_computers_are_used_when_fewer_are_faster(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [
        device_of("Laptop", decode_ms=3.0),
        device_of("Desktop", decode_ms=0.5),
        device_of("Mac"),
    ]

    plan = make_plan(shape_of(), devices, links_of(devices))

    assert [stage.name for stage in plan.stages] == ["Desktop"]


def test_the_master_computes_alone_when_the_network_is_slow(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Laptop", decode_ms=1.0), device_of("Desktop", decode_ms=0.9)]

    plan = make_plan(shape_of(), devices, links_of(devices, rtt_ms=30.0))

    assert [stage.name for stage in plan.stages] == ["Laptop"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_as_many_other_computers_take_part_as_asked_for(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf, workers: int
) -> None:
    devices = [device_of(name) for name in ("Laptop", "Desktop", "Mac", "NAS")]

    plan = make_plan(shape_of(), devices, links_of(devices), min_workers=workers)

    assert len({stage.name for stage in plan.stages} - {"Laptop"}) == workers


def test_layers_stay_where_they_are_if_that_is_nearly_as_fast(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    shape = shape_of(9)
    devices = [device_of(name, 110) for name in ("Desk", "Laptop", "Mac", "NAS")]
    links = links_of(devices)
    before = make_plan(shape, [devices[0], *devices[2:]], links).stages
    lost = before[1].name
    left = [device for device in devices if device.name != lost]

    plan = make_plan(shape, left, links, near=before)

    check(plan, shape, left, links)
    stays = [stage for stage in before if stage.name != lost]
    assert [s for s in plan.stages if s.name != "Laptop"] == stays
    anew = make_plan(shape, left, links)
    assert plan.token_ms == anew.token_ms == plan.lower_bound_ms
    assert plan.optimal
    assert "another way" not in plan.explanation


def test_layers_that_stay_say_how_much_faster_another_way_is(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Desk"), device_of("Laptop")]
    links = links_of(devices, rtt_ms=0.0, bytes_per_s=1e12)
    had = make_plan(shape_of(), devices[:1], {}).stages
    devices[1] = replace(devices[1], decode_ms=(0.96,))
    anew = make_plan(shape_of(), devices, links)

    plan = make_plan(shape_of(), devices, links, near=had)

    assert [stage.name for stage in anew.stages] == ["Laptop"]
    assert plan.stages == had
    assert plan.lower_bound_ms == anew.token_ms
    assert "Layers stay where they are loaded: another way could be up to 4 % faster." in (
        plan.explanation.splitlines()
    )


def test_layers_move_if_that_is_clearly_faster(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    devices = [device_of("Desk"), device_of("Laptop", decode_ms=0.5)]
    links = links_of(devices)
    alone = make_plan(shape_of(), devices[:1], links)

    plan = make_plan(shape_of(), devices, links, near=alone.stages)

    assert [stage.name for stage in plan.stages] == ["Laptop"]
    assert plan.token_ms == make_plan(shape_of(), devices, links).token_ms


def test_a_layer_whose_table_would_have_to_be_sent_stays_where_the_files_are(
    device_of: DeviceOf, shape_of: ShapeOf, links_of: LinksOf
) -> None:
    shape = shape_of(layers=[0, 1, 0, 0], layer_bytes=(10, 10), disk_bytes=(0, 10**11))
    times = {"Desk": (1.0, 1.0), "Laptop": (0.2, 0.2)}
    devices = [device_of(name, 10_000, ms) for name, ms in times.items()]
    links = links_of(devices)

    plan = make_plan(shape, devices, links)

    check(plan, shape, devices, links)
    shares = [(stage.name, stage.layers) for stage in plan.stages]
    assert shares == [("Desk", range(2)), ("Laptop", range(2, 4))]
    assert f"Desk reads rows of a table of {format_bytes(10**11)} from its disk" in plan.explanation
    # A computer that has it already may keep it, and one that lends no memory cannot have it.
    had = make_plan(replace(shape, disk_bytes=()), devices, links)
    assert [stage.name for stage in had.stages] == ["Laptop"]
    assert make_plan(shape, devices, links, near=had.stages).stages == had.stages
    small = [device_of("Desk", 5, times["Desk"]), devices[1]]
    assert make_plan(shape, small, links).stages == had.stages
    forced = make_plan(shape, small, links)
    assert forced.token_ms == had.token_ms
    assert forced.users_tokens_per_s == pytest.approx(forced.predicted_tokens_per_s)
    assert forced.optimal  # what was slower in the search is as fast as any
    # The bound is that of the model's tokens, wherever tables are.
    assert plan.lower_bound_ms == pytest.approx(had.token_ms)
    assert not plan.optimal
    assert "Layers with a table stay on the computers that have it" in plan.explanation


def test_names_are_told_apart_only_where_they_must_be(device_of: DeviceOf) -> None:
    devices = [
        device_of("Laptop", node="1" * 64),
        device_of("Laptop", node="2" * 64),
        device_of("Desktop", device="cuda:0"),
        device_of("Desktop", device="cuda:1"),
        device_of("Mac"),
    ]

    assert labels(devices) == (
        "Laptop (11111111)",
        "Laptop (22222222)",
        "Desktop/cuda:0",
        "Desktop/cuda:1",
        "Mac",
    )
    assert computer_names(devices) == {
        "1" * 64: "Laptop (11111111)",
        "2" * 64: "Laptop (22222222)",
        "d" * 64: "Desktop",
        "m" * 64: "Mac",
    }
