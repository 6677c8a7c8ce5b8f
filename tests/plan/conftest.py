"""Homes to plan for: a few computers by hand, or any number at random."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pytest

from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, LinkCost, ModelShape
from potluck.plan.route import Problem
from potluck.plan.spans import Span, held_bytes, span_of

Home: TypeAlias = tuple[ModelShape, list[DeviceCost], dict[tuple[NodeId, NodeId], LinkCost]]


def make_shape(
    num_layers: int = 36,
    *,
    layers: Sequence[int] | None = None,
    layer_bytes: Sequence[int] = (10,),
    **changes: int | bool | tuple[int, ...],
) -> ModelShape:
    """By default layers of 10 bytes with 10 bytes of cache, an embedding of 15 and a head of 20."""
    sizes = {
        "cache_bytes": (10,) * len(layer_bytes),
        "embedding_bytes": 15,
        "head_bytes": 20,
        "hidden_bytes": 8192,
    }
    kinds = (0,) * num_layers if layers is None else tuple(layers)
    return ModelShape(layers=kinds, layer_bytes=tuple(layer_bytes), **{**sizes, **changes})


def make_device(
    name: str,
    memory: int = 10_000,
    decode_ms: float | tuple[float, ...] = 1.0,
    *,
    head_ms: float = 0.0,
    prefill_ms: float = 10.0,
    node: str = "",
    device: str = "cpu",
    picture_ms: float = 0.0,
) -> DeviceCost:
    """A device; where layers differ, `decode_ms` has a time for each kind."""
    times = decode_ms if isinstance(decode_ms, tuple) else (decode_ms,)
    return DeviceCost(
        node=NodeId(node or name.casefold()[:1] * 64),
        name=name,
        device=device,
        memory=memory,
        decode_ms=times,
        prefill_ms=(prefill_ms,) * len(times),
        head_ms=head_ms,
        picture_ms=picture_ms,
    )


def make_links(
    devices: list[DeviceCost], rtt_ms: float = 1.0, bytes_per_s: float = 1e8
) -> dict[tuple[NodeId, NodeId], LinkCost]:
    cost = LinkCost(rtt_ms=rtt_ms, bytes_per_s=bytes_per_s)
    return {(a.node, b.node): cost for a in devices for b in devices if a.node != b.node}


def random_home(
    random: Random, max_devices: int = 4, max_layers: int = 6, *, kinds: int = 1
) -> Home:
    """Uneven computers on uneven links, with ties, unknown links and two devices in one computer.

    With several `kinds`, layers differ in bytes, in time or in both, in any pattern.
    """
    num_layers = random.choice([1, 2, random.randint(2, max_layers), max_layers])
    shape = make_shape(
        layers=[random.randrange(kinds) for _ in range(num_layers)],
        layer_bytes=random.choice(
            [[10] * kinds, [10, *(random.randint(1, 40) for _ in range(kinds - 1))]]
        ),
        embedding_bytes=random.choice([0, 15, 40]),
        head_bytes=random.choice([0, 20, 40]),
        sessions=random.choice([1, 1, 2]),
        tied=random.random() < 0.5,
    )
    count = random.randint(1, max_devices)
    most = random.choice([60, 90, 130, 250])  # the tighter, the more computers must take part
    nodes = [f"{k - (k > 0 and random.random() < 0.2):064x}" for k in range(count)]
    devices = [
        make_device(
            f"pc {k}",
            random.choice([0, 20, 45, 60, most, most, most]) * max_layers // 6,
            tuple(random.choice([0.0, 0.5, 1.0, random.uniform(0.1, 5)]) for _ in range(kinds)),
            head_ms=random.choice([0.0, random.uniform(0, 3)]),
            node=node,
            device=f"cuda:{k}",
        )
        for k, node in enumerate(nodes)
    ]
    links = {
        (a.node, b.node): LinkCost(
            rtt_ms=random.choice([0.0, 1.0, random.uniform(0, 8)]),
            bytes_per_s=random.uniform(1e6, 1e8),
        )
        for a in devices
        for b in devices
        if a.node != b.node and random.random() < 0.9
    }
    return shape, devices, links


def make_span(num_layers: int, room: int, layer_ms: float = 1.0) -> Span:
    """A device with room for so many equal layers at any place."""
    return Span(
        ms=tuple(layer_ms * n for n in range(num_layers + 1)),
        reach=tuple(min(start + room, num_layers) for start in range(num_layers)),
        first=min(room, num_layers),
        last=max(0, num_layers - room),
        only=room >= num_layers,
    )


def make_problem(
    size: int,
    num_layers: int = 12,
    room: int = 12,
    hop_ms: float = 1.0,
    *,
    layer_ms: Sequence[float] | None = None,
    **changes: object,
) -> Problem:
    """Devices with equal layers, each of its own computer but the first, which is the master's."""
    problem = Problem(
        held=tuple(range(num_layers + 1)),
        spans=tuple(make_span(num_layers, room, ms) for ms in layer_ms or (1.0,) * size),
        head_ms=(0.0,) * size,
        enter_ms=(0.0,) + (hop_ms,) * (size - 1),
        leave_ms=(0.0,) + (hop_ms,) * (size - 1),
        hop_ms=tuple(tuple(hop_ms * (a != b) for b in range(size)) for a in range(size)),
        workers=tuple((1 << k) >> 1 for k in range(size)),
    )
    return replace(problem, **changes)  # pyright: ignore[reportArgumentType]


def make_uneven(
    memories: Sequence[int], num_layers: int = 8, seed: int = 0, **changes: object
) -> Problem:
    """Devices of such memories and random speeds, and layers of two kinds in a random pattern."""
    random = Random(seed)
    kinds = [0, 1, *(random.randrange(2) for _ in range(num_layers - 2))]
    shape = make_shape(layers=kinds, layer_bytes=[10, 40])
    times = [(random.uniform(0.3, 3), random.uniform(0.3, 3)) for _ in memories]
    spans = [span_of(shape, ms, memory) for ms, memory in zip(times, memories, strict=True)]
    problem = make_problem(len(memories), num_layers, held=held_bytes(shape), spans=tuple(spans))
    return replace(problem, **changes)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="session")
def shape_of() -> Callable[..., ModelShape]:
    return make_shape


@pytest.fixture(scope="session")
def device_of() -> Callable[..., DeviceCost]:
    return make_device


@pytest.fixture(scope="session")
def links_of() -> Callable[..., dict[tuple[NodeId, NodeId], LinkCost]]:
    return make_links


@pytest.fixture(scope="session")
def home_of() -> Callable[..., Home]:
    return random_home


@pytest.fixture(scope="session")
def problem_of() -> Callable[..., Problem]:
    return make_problem


@pytest.fixture(scope="session")
def span_with_room() -> Callable[..., Span]:
    return make_span


@pytest.fixture(scope="session")
def uneven() -> Callable[..., Problem]:
    return make_uneven
