"""What a plan is made from: the model's sizes, what each computer measured, what each link costs.

Frozen values, and the two rules that the planner weighs them with: what a stage occupies, and
how long a message takes from one computer to another. Times are milliseconds, sizes are
bytes. Nothing here measures anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

from potluck.errors import UsageError
from potluck.ids import NodeId

# Measured on llama-1b and qwen-0.5b, with caches that the weights have just gone through.
HOP_SOFTWARE_MS = 0.3  # a frame, TLS and a thread to wake, besides half of a round trip
LOCAL_HOP_MS = 0.35  # all of it, between two processes of one computer
TOKEN_MESSAGE_BYTES = 256  # a step's header with one token id, or its result: the way in and out


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of one model in one scheme, for one length of context.

    Layers of one kind have the same size and cost the same. Kinds are numbers, the same ones in
    every `DeviceCost`; most models have one.
    """

    layers: tuple[int, ...]  # the kind of each
    layer_bytes: tuple[int, ...]  # of each kind
    cache_bytes: tuple[int, ...]  # of each kind: of a session that fills the context
    embedding_bytes: int
    head_bytes: int  # final norm and lm_head
    hidden_bytes: int  # one token's hidden state on the wire
    sessions: int = 1
    tied: bool = False  # embedding and head share their matrix
    expert_share: float = 0.0  # of the bytes of layers that one token reads, those of experts
    expert_part: float = 1.0  # of the experts of a layer, those that one token goes through

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def layer_memory(self) -> tuple[int, ...]:
        """What a layer of each kind occupies: its weights, and its cache for every session."""
        sizes = zip(self.layer_bytes, self.cache_bytes, strict=True)
        return tuple(weights + cache * self.sessions for weights, cache in sizes)

    @property
    def smallest_layer_memory(self) -> int:
        """With less than this nobody takes part."""
        memory = self.layer_memory
        return min(memory[kind] for kind in self.layers)

    @property
    def model_memory(self) -> int:
        """What the whole model occupies on one device."""
        return self.stage_memory(range(self.num_layers), first=True, last=True)

    def reading(self, tokens: int) -> float:
        """The weight bytes that so many tokens read, relative to one token (MoE: experts by chance)."""
        touched = 1 - (1 - self.expert_part) ** tokens
        return 1 - self.expert_share + self.expert_share * touched / self.expert_part

    def stage_memory(self, layers: range, *, first: bool, last: bool) -> int:
        memory = self.layer_memory
        return self.ends_memory(first=first, last=last) + sum(
            memory[kind] for kind in self.layers[layers.start : layers.stop]
        )

    def ends_memory(self, *, first: bool, last: bool) -> int:
        """What the first and the last stage hold besides layers."""
        if first and last and self.tied:
            return max(self.embedding_bytes, self.head_bytes)  # the shared matrix counts once
        return self.embedding_bytes * first + self.head_bytes * last


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """One device of one computer: what it lends, and what it measured on the real layer shapes."""

    node: NodeId
    name: str  # of the computer, for people
    device: str  # "cuda:0", "cpu"
    memory: int  # that it lends, its own reserve already taken off
    decode_ms: tuple[float, ...]  # one layer of each kind, one token
    prefill_ms: tuple[float, ...]  # one layer of each kind, one chunk of prefill
    head_ms: float  # final norm, lm_head and sampling, once per token


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """What was measured from one computer to another."""

    rtt_ms: float
    bytes_per_s: float


Links: TypeAlias = Mapping[tuple[NodeId, NodeId], LinkCost]

# A link that nobody measured is taken for a poor Wi-Fi: the plan may then be too careful, but never
# counts on a link that is not there.
UNKNOWN_LINK = LinkCost(rtt_ms=10.0, bytes_per_s=2.5e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The way of a message between two processes: a constant, and a time for each byte."""

    latency_ms: float
    ms_per_byte: float

    def ms(self, nbytes: int) -> float:
        return self.latency_ms + nbytes * self.ms_per_byte


def hop_between(links: Links, source: NodeId, target: NodeId) -> Hop:
    """Where only the opposite direction was measured, it stands for both."""
    if source == target:
        return Hop(latency_ms=LOCAL_HOP_MS, ms_per_byte=0.0)
    link = links.get((source, target)) or links.get((target, source)) or UNKNOWN_LINK
    return Hop(
        latency_ms=link.rtt_ms / 2 + HOP_SOFTWARE_MS,
        ms_per_byte=1000 / link.bytes_per_s,
    )


def has_equal_layers(shape: ModelShape, devices: Sequence[DeviceCost]) -> bool:
    """Whether all layers take the same memory, and on each device the same time."""
    figures = [shape.layer_memory, *(device.decode_ms for device in devices)]
    return all(len({of_kind[kind] for kind in shape.layers}) == 1 for of_kind in figures)


def check_measurements(shape: ModelShape, devices: tuple[DeviceCost, ...], links: Links) -> None:
    """Refuse figures that no measurement gives: they come from other computers.

    Raises:
        UsageError: a time or a size is negative or not a number, or a rate is zero.
    """
    if (
        shape.num_layers < 1
        or shape.smallest_layer_memory < 1
        or shape.ends_memory(first=True, last=True) < 0
    ):
        raise UsageError("The model has no layers, so there is nothing to share out.")
    for device in devices:
        times = (*device.decode_ms, *device.prefill_ms, device.head_ms)
        every_kind = len(device.decode_ms) == len(device.prefill_ms) == len(shape.layer_bytes)
        sane = device.memory >= 0 and all(isfinite(ms) and ms >= 0 for ms in times)
        if not (every_kind and sane):
            raise UsageError(
                f"{device.name} reports a speed or a memory that cannot be. Measure it again.",
                computer=device.name,
            )
    for (source, target), link in links.items():
        finite = isfinite(link.rtt_ms) and isfinite(link.bytes_per_s)
        if not finite or link.rtt_ms < 0 or link.bytes_per_s <= 0:
            raise UsageError(
                "The link between two computers was measured with a rate that cannot be."
                " Measure it again.",
                source=source,
                target=target,
            )
