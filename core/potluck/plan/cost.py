"""The input of the planner: the sizes of the model, and the costs of the devices and links.

These are frozen values, with two rules that the planner needs: how much memory a stage takes, and
how long a message takes from one computer to another. Times are in milliseconds, sizes in bytes.
Nothing is measured here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TypeAlias

from potluck.errors import UsageError
from potluck.ids import NodeId
from potluck.model.caches import CacheSpec
from potluck.model.measured import CACHED, chunk_read, token_read

# Measured on llama-1b and qwen-0.5b, while the weights had just replaced the contents of the CPU
# caches.
HOP_SOFTWARE_MS = 0.3  # a frame, TLS and waking a thread; half of a round trip comes on top
LOCAL_HOP_MS = 0.35  # a whole hop between two processes of one computer
TOKEN_MESSAGE_BYTES = 256  # a step with one token id, or its result: into and out of the pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of one model in one scheme, for one length of context.

    Layers of one kind have the same size and cost. A kind is a number, which means the same kind in
    every `DeviceCost`. Most models have one kind.
    """

    layers: tuple[int, ...]  # the kind of each layer
    layer_bytes: tuple[int, ...]  # for each kind
    cache_bytes: tuple[int, ...]  # for each kind, of a session that fills the context
    embedding_bytes: int
    head_bytes: int  # final norm and lm_head
    picture_bytes: int = 0  # working memory more beside the embedding, where pictures are read
    picture_tokens: float = 0.0  # a picture is as much work as so many tokens in a layer of kind 0
    tower_bytes: int = 0  # of the vision tower, which is also counted beside the embedding
    pixel_bytes: int = 0  # of a large picture
    row_bytes: int = 0  # of what a tower makes of it
    hidden_bytes: int  # one token's hidden state on the wire
    later_cache_bytes: int = (
        0  # likewise, beside its layers', of a stage that has not the first layer
    )
    sessions: int = 1
    tied: bool = False  # embedding and head share their matrix
    expert_bytes: tuple[
        int, ...
    ] = ()  # for each kind, of all its experts (MoE); (): there are none
    expert_part: float = 1.0  # fraction of a layer's experts that one token uses (MoE)
    disk_bytes: tuple[
        int, ...
    ] = ()  # for each kind, of tables that stay on the disk; (): there are none
    shared_disk_bytes: int = 0  # of tables that all layers read; each stage has all of them
    hidden_size: int = 0  # numbers of a token that ranks sum, without what goes along behind them
    divided: tuple[float, ...] = ()  # for each kind, the part that ranks share; each has the rest
    caches: tuple[CacheSpec, ...] = ()  # for each kind; (): times do not grow with what is cached
    depths: tuple[int, ...] = (CACHED,)  # cached tokens while `DeviceCost.decode_ms` was measured

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def has_tables(self) -> bool:
        """Whether any layer reads from the disk."""
        return bool(self.disk_bytes) or self.shared_disk_bytes > 0

    def tables(self, layers: Sequence[int]) -> int:
        """Bytes that a stage with these layers has on its disk, to read rows of."""
        own = sum(self.disk_bytes[self.layers[layer]] for layer in layers) if self.disk_bytes else 0
        return own + self.shared_disk_bytes if layers else 0

    def share(self, kind: int, part: float) -> float:
        """How much of a layer of this kind a rank has whose part of what ranks share is `part`."""
        divided = self.divided[kind] if self.divided else 1.0
        return 1 - divided + divided * part

    @property
    def viewer_memory(self) -> int:
        """Bytes of a vision tower without layers."""
        return self.tower_bytes + self.picture_bytes

    @property
    def layer_memory(self) -> tuple[int, ...]:
        """Bytes of a layer of each kind: its weights, and its KV cache for all sessions."""
        sizes = zip(self.layer_bytes, self.cache_bytes, strict=True)
        return tuple(weights + cache * self.sessions for weights, cache in sizes)

    @property
    def smallest_layer_memory(self) -> int:
        """Bytes of the smallest layer: a device with less memory cannot take part."""
        memory = self.layer_memory
        return min(memory[kind] for kind in self.layers)

    @property
    def model_memory(self) -> int:
        """Bytes of the whole model on one device."""
        return self.stage_memory(range(self.num_layers), first=True, last=True)

    def read_bytes(self, kinds: Sequence[int], tokens: int = 1) -> float:
        """Bytes of weights that so many tokens read together in layers of these kinds.

        Each token is taken to choose experts at random.
        """
        whole = sum(self.layer_bytes[kind] for kind in kinds)
        if not self.expert_bytes:
            return whole
        unused = (1 - self.expert_part) ** tokens
        return whole - unused * sum(self.expert_bytes[kind] for kind in kinds)

    def reading(self, kinds: Sequence[int], tokens: int) -> float:
        """What so many tokens read together in layers of these kinds, relative to one token.

        This is 1 for layers without experts.
        """
        if not self.expert_bytes:
            return 1.0
        return self.read_bytes(kinds, tokens) / self.read_bytes(kinds)

    def batch_ms(
        self,
        kinds: Sequence[int],
        decode_ms: float,
        prefill_ms: float,
        *,
        tokens: int,
        measured_tokens: int,
    ) -> float:
        """The time of layers for several tokens at once.

        Reading the weights takes as long as for one token. Each further token adds its share of the
        measured chunk.

        Args:
            kinds: of each of the layers.
            decode_ms: of one token.
            prefill_ms: of the measured chunk.
            tokens: computed at once.
            measured_tokens: size of the measured chunk.
        """
        more_ms = max(0.0, prefill_ms - decode_ms * self.reading(kinds, measured_tokens))
        further_ms = (tokens - 1) * more_ms / max(1, measured_tokens - 1)
        return decode_ms * self.reading(kinds, tokens) + further_ms

    def token_longer_ms(self, read_ms: Sequence[float], cached: int) -> float:
        """How much longer than its measured time a token takes after so many; `read_ms` as of `DeviceCost`, of its layers."""
        return sum(
            ms * (token_read(cache, (cached,)) - token_read(cache, self.depths))
            for ms, cache in zip(read_ms, self.caches, strict=False)
        )

    def chunk_longer_ms(
        self, read_ms: Sequence[float], position: int, tokens: int, *, measured_tokens: int
    ) -> float:
        """How much longer than as many at the beginning of a prompt the tokens of a chunk take from this position on."""
        return tokens * sum(
            ms * (chunk_read(cache, position, tokens) - chunk_read(cache, 0, measured_tokens))
            for ms, cache in zip(read_ms, self.caches, strict=False)
        )

    def picture_ms(self, device: "DeviceCost", measured_tokens: int) -> float:
        """The time of a large picture in a device's tower: as measured, or by that of a chunk of so many tokens."""
        return device.picture_ms or self.picture_tokens * device.prefill_ms[0] / measured_tokens

    def stage_memory(self, layers: range, *, first: bool, last: bool) -> int:
        memory = self.layer_memory
        return self.ends_memory(first=first, last=last) + sum(
            memory[kind] for kind in self.layers[layers.start : layers.stop]
        )

    def ends_memory(self, *, first: bool, last: bool) -> int:
        """Bytes of a stage besides its layers: embedding and what reads pictures of the first, the head of the last."""
        if not first:  # it may begin behind layers whose keys and values its own take
            return self.later_cache_bytes * self.sessions + self.head_bytes * last
        if last and self.tied:  # the shared matrix once
            return self.picture_bytes + max(self.embedding_bytes, self.head_bytes)
        return self.picture_bytes + self.embedding_bytes + self.head_bytes * last


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCost:
    """One device of one computer: what it lends, and what it measured on the real layer shapes."""

    node: NodeId
    name: str  # of the computer, for people
    device: str  # "cuda:0", "cpu"
    memory: int  # bytes that it lends, without its own reserve
    decode_ms: tuple[float, ...]  # of one token in one layer, for each kind
    prefill_ms: tuple[float, ...]  # of one prefill chunk in one layer, for each kind
    head_ms: float  # final norm, lm_head and sampling, once per token
    # How much longer one token takes in one layer for each byte of its cache that it reads, for each kind: a token of an
    # answer, and each one of a chunk. (): it was not measured.
    token_read_ms: tuple[float, ...] = ()
    chunk_read_ms: tuple[float, ...] = ()
    can_rank: bool = True  # it may compute layers together with others
    moves_caches: bool = True  # it sends the caches of prompts to others, and takes them
    is_apart: bool = False  # it has another part, and can have no layers of this plan
    picture_ms: float = 0.0  # of a large picture in the vision tower; 0: not measured
    is_wide: bool = False  # it holds 32 bits in place of 16: it has no bf16, which the model needs
    on_wifi: bool = False  # its computer says so; False: by a cable, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """The measured link from one computer to another."""

    rtt_ms: float
    bytes_per_s: float


Links: TypeAlias = Mapping[tuple[NodeId, NodeId], LinkCost]

# A link that was not measured is taken for a poor Wi-Fi: the plan may then be too careful, but it
# never relies on a fast link that does not exist.
UNKNOWN_LINK = LinkCost(rtt_ms=10.0, bytes_per_s=2.5e6)

# What a cable of a home would give in place of Wi-Fi: Gigabit Ethernet, with the round trip of a message
# through TLS and two event loops.
CABLE = LinkCost(rtt_ms=0.6, bytes_per_s=110e6)


def cabled(links: Links, nodes: Collection[NodeId]) -> Links:
    """The links as they would be if these computers had a cable. Those that are better stay as they are."""
    return {
        pair: LinkCost(
            rtt_ms=min(link.rtt_ms, CABLE.rtt_ms),
            bytes_per_s=max(link.bytes_per_s, CABLE.bytes_per_s),
        )
        if not set(pair).isdisjoint(nodes)
        else link
        for pair, link in links.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class HopCost:
    """The time of a message between two processes: a latency, and a time for each byte."""

    latency_ms: float
    ms_per_byte: float

    def ms(self, nbytes: int) -> float:
        return self.latency_ms + nbytes * self.ms_per_byte


def hop_between(links: Links, source: NodeId, target: NodeId) -> HopCost:
    """The hop between two computers. An unmeasured direction takes the cost of the opposite one."""
    if source == target:
        return HopCost(latency_ms=LOCAL_HOP_MS, ms_per_byte=0.0)
    link = links.get((source, target)) or links.get((target, source)) or UNKNOWN_LINK
    return HopCost(
        latency_ms=link.rtt_ms / 2 + HOP_SOFTWARE_MS,
        ms_per_byte=1000 / link.bytes_per_s,
    )


Sums: TypeAlias = Mapping[tuple[NodeId, NodeId], HopCost]
"""The measured time of a sum of two ranks, by the number of bytes of each; both may be on one computer."""


def has_equal_layers(shape: ModelShape, devices: Sequence[DeviceCost]) -> bool:
    """Whether all layers take the same memory, and on each device the same time."""
    figures = [shape.layer_memory, *(device.decode_ms for device in devices)]
    return all(len({of_kind[kind] for kind in shape.layers}) == 1 for of_kind in figures)


def check_measurements(
    shape: ModelShape,
    devices: tuple[DeviceCost, ...],
    links: Links,
    sums: Sums | None = None,
) -> None:
    """Refuse figures that no measurement can give: they come from other computers, so check them.

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
        reading = (device.token_read_ms, device.chunk_read_ms)
        times = (*device.decode_ms, *device.prefill_ms, device.head_ms, *reading[0], *reading[1])
        kinds = len(shape.layer_bytes)
        every_kind = len(device.decode_ms) == len(device.prefill_ms) == kinds
        every_kind = every_kind and all(len(of_kind) in {0, kinds} for of_kind in reading)
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
    for (source, target), cost in (sums or {}).items():
        if not all(isfinite(ms) and ms >= 0 for ms in (cost.latency_ms, cost.ms_per_byte)):
            raise UsageError(
                "The sums of two computers were measured with a time that cannot be. Measure them again.",
                source=source,
                target=target,
            )
