"""Messages between nodes, as immutable values: those of every connection, control and weights.

A message is a MessagePack map with its name under `op`. A request has an `id`, and its answer has
the same number under `re`. Decoding checks every field, and the error names the wrong one. Other
modules have the messages of activations, measurements, spare copies and passing weights on.
`core/PROTOCOL.md` describes the order of messages and its meaning.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from potluck.model.schemes import Cache, Scheme
from potluck.model.shares import MAX_RANKS
from potluck.wire.fields import (
    LINE,
    Count,
    Hex,
    Name,
    Port,
    Seconds,
    SessionName,
    Shape,
    Size,
    StoredDtype,
    Text,
    printable,
)
from potluck.wire.shares import RankNumber, RankShare

Purpose = Literal["control", "activations", "weights", "ranks", "wheels"]

MAX_ADDRESSES = 16  # no computer of a home has more interfaces
MAX_TENSORS = 1 << 17  # a mixture of experts with 128 layers of 256 experts has 98,304
MAX_TOKENS = 1 << 20  # one forward; the longest context of any known model
MAX_CACHE_HOPS = 64  # stages with some of the same layers; a home has fewer
MAX_REVOKED = 1024  # no home gives away so many computers


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """An address to dial: an IP address (with its zone, if any) or a host name, and a port."""

    host: Annotated[str, Meta(min_length=1, max_length=255, pattern=LINE)]
    port: Port


Addresses = Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]
DeviceKind = Literal["cuda", "mps", "cpu"]


class DeviceId(msgspec.Struct, frozen=True, kw_only=True):
    """One of a node's devices, numbered as in torch: `cuda:0`."""

    kind: DeviceKind
    index: Count = 0


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A compute device. `kind` and `index` identify it; `name` is for people."""

    kind: DeviceKind
    index: Count = 0
    name: Name = ""
    memory_total: Size
    memory_free: Size  # what this node lends now

    @property
    def id(self) -> DeviceId:
        return DeviceId(kind=self.kind, index=self.index)


class Vitals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a computer's sensors say; None: that cannot be read there."""

    battery: Annotated[float, Meta(ge=0, le=1)] | None = None  # the share that is left
    plugged: bool = False
    heat_c: Annotated[float, Meta(ge=-50, le=200)] | None = None  # of its hottest processor, in °C


class Medium(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a computer's connection to its network goes over; empty: its system does not say."""

    kind: Annotated[str, Meta(max_length=16)] = ""  # wifi, cable, vpn, virtual; others may be added
    mbit: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None  # Mbit/s of a cable


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node's own description. Its id must be the one of its certificate."""

    node_id: Hex
    name: Name
    version: Annotated[str, Meta(max_length=32, pattern=LINE)]  # of the program
    os: Annotated[str, Meta(max_length=64, pattern=LINE)]
    arch: Annotated[str, Meta(max_length=32, pattern=LINE)]
    machine: Annotated[str, Meta(max_length=64, pattern=LINE)] = ""  # equal on one computer
    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=16)] = ()  # the best one first
    port: Annotated[int, Meta(ge=0, le=65535)] = 0  # at which it listens; 0: not said
    clock: Annotated[float, Meta(ge=0, le=1e11)] | None = None  # Unix time when it said this


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a model, as in the model's manifest."""

    name: Annotated[str, Meta(max_length=256)]
    dtype: StoredDtype
    shape: Shape
    digest: Hex
    nbytes: Size
    whole: Hex | None = None
    """Digest of the tensor that this is a rank's slice of, with its shape, bytes and digest; None: it is a whole one."""


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """The next stage, to which a stage sends its hidden states."""

    node_id: Hex
    addresses: Addresses  # of the next stage's activation listener


PlanKey = Hex
"""Drawn by the master for each plan. The stages of the plan are told it, and those of the one that takes its sessions."""


class CacheHop(Hop, frozen=True, kw_only=True):
    """A stage that has some of this one's layers: to it, or from it, caches of these are moved."""

    layers: tuple[Count, Count]  # start, stop
    share: RankShare | None = None  # that it has of each; None: all of it


class PlanBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The plan whose conversations a stage takes over, and the stages elsewhere that had its layers in that plan."""

    epoch: Count
    hops: Annotated[tuple[CacheHop, ...], Meta(max_length=MAX_CACHE_HOPS)] = ()
    key: PlanKey | None = None  # of that plan; None: its stages give nothing


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", omit_defaults=True):
    """A message. With an `id` it is a request; `re` is the `id` of the request that it answers."""

    id: Count | None = None
    re: Count | None = None


class Told(Message, frozen=True):
    """A message with a sentence that says what went wrong."""

    message: Text

    def __post_init__(self) -> None:
        force_setattr(self, "message", printable(self.message))


# --- every connection


class Hello(Message, frozen=True, tag="hello"):
    """The first message of the side that dialled."""

    versions: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
    purpose: Purpose
    node: NodeInfo


class Welcome(Message, frozen=True, tag="welcome"):
    """The listener's answer, with the highest version that both speak."""

    version: Count
    node: NodeInfo


class Ping(Message, frozen=True, tag="ping"):
    """A heartbeat. Answered at once."""


class Pong(Message, frozen=True, tag="pong"):
    """The heartbeat's answer."""


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The sender closes the connection on purpose: it is not lost."""

    reason: Text = ""

    def __post_init__(self) -> None:
        force_setattr(self, "reason", printable(self.reason))


class Error(Told, frozen=True, tag="error"):
    """A request was not carried out. `re` is the id of the request."""

    kind: Annotated[str, Meta(max_length=64)]  # a `code` of potluck.errors, or "unknown_op"
    data: Annotated[dict[str, str | int | float | bool | None], Meta(max_length=64)] = {}


# --- control: the master asks, a worker answers


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a group, which computes its layers together with the others."""

    rank: RankNumber
    hops: Annotated[tuple[Hop, ...], Meta(min_length=2, max_length=MAX_RANKS)]
    """Where the stage processes of all ranks listen, in the order of the ranks."""

    @property
    def above(self) -> tuple[Hop, ...]:
        """The ranks that this one dials."""
        return self.hops[self.rank + 1 :]


class HeldStage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The layers that a device has in memory, and the stage that computes with them.

    After a load that failed there may be layers, and no stage: `epoch` is None then.
    """

    device: DeviceId
    model_id: Hex
    scheme: Scheme
    layers: tuple[Count, Count]  # start, stop
    embedding: bool
    head: bool
    cache: Cache = "full"
    seed: Count | None = None  # of random weights
    share: RankShare | None = None  # of each layer; None: all of it
    epoch: Count | None = None
    context: Count | None = None  # tokens that one session holds at most


class Status(Message, frozen=True, tag="status"):
    """A worker tells what it lends and what it holds, whenever that changes."""

    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=16)]
    paused: bool = False
    leaving: bool = False  # it computes on for a moment, and then it is paused or gone
    reason: Annotated[str, Meta(max_length=32)] | None = None  # of the pause; others may be added
    lent_to: Name | None = None  # the name of another home's master that has the devices
    held: Annotated[tuple[HeldStage, ...], Meta(max_length=16)] = ()  # for the reader's home
    vitals: Vitals | None = None
    medium: Medium | None = None  # by which the reader is reached


class StillNeeded(Message, frozen=True, tag="still_needed"):
    """A master tells a worker that leaves that its model does not fit without it."""


class Revoked(Message, frozen=True, tag="revoked"):
    """The whole list of members that the home no longer trusts. Only its master sends it."""

    node_ids: Annotated[tuple[Hex, ...], Meta(max_length=MAX_REVOKED)]


class Assign(Message, frozen=True, tag="assign"):
    """Assign these layers of a plan to one of the worker's devices. Answered by `need`.

    A node has at most one stage on each device, and all its stages belong to one plan: the first
    `assign` of another epoch replaces them all. From then on, epoch and device identify a stage.
    """

    epoch: Count
    model_id: Hex
    config: dict[str, object]
    scheme: Scheme
    layers: tuple[Count, Count]  # start, stop
    embedding: bool
    head: bool
    context: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]  # tokens of one session at most
    tensors: Annotated[tuple[TensorInfo, ...], Meta(max_length=MAX_TENSORS)] = ()
    cache: Cache = "full"
    seed: Count | None = None  # of random weights, which the stage makes itself: no tensors
    device: DeviceId | None = None  # None: the best one
    share: RankShare | None = None  # of each layer; None: all of it
    model: Name = ""  # its name, for the worker's owner
    tower: bool = False
    """It has the vision tower without being the first stage: it reads pictures for that, which has one as well.

    Then it may have no layers (0, 0).
    """


class NeedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor to send, and the offset at which to begin."""

    digest: Hex
    offset: Size  # bytes that are here already


class Need(Message, frozen=True, tag="need"):
    """The tensors that the store lacks, and where the stage will listen for activations."""

    epoch: Count
    activation_port: Port
    tensors: Annotated[tuple[NeedTensor, ...], Meta(max_length=MAX_TENSORS)] = ()


class Load(Message, frozen=True, tag="load"):
    """All weights are there: load them. Answered by `loaded`, with `warming_up` before it."""

    epoch: Count
    next_hop: Hop | None  # None: the last stage, which answers the driver
    previous: Hex | None = None  # the stage before; None: the first, which the driver feeds
    device: DeviceId | None = None  # the stage's device; None: the best one
    ranks: RankPlace | None = None  # the group that it is a rank of; None: of none
    # The stages that answer with what this one reads.
    cache_hops: Annotated[tuple[CacheHop, ...], Meta(max_length=MAX_CACHE_HOPS)] = ()
    before: PlanBefore | None = None  # None: it takes no conversations over
    key: PlanKey | None = None  # who knows it may fetch the caches of this plan; None: nobody may

    @property
    def required(self) -> tuple[Hop, ...]:
        """The stages without which this one is not loaded."""
        above = () if self.ranks is None else self.ranks.above
        following = () if self.next_hop is None else (self.next_hop,)
        return (*following, *above, *self.cache_hops)

    @property
    def dialled(self) -> tuple[Hop, ...]:
        """The stages with which the process of this stage connects, also those of the plan before."""
        before = () if self.before is None else self.before.hops
        return (*self.required, *before)


class WarmingUp(Message, frozen=True, tag="warming_up"):
    """Loading continues: the master must keep waiting. Has no `re`."""

    epoch: Count
    progress: Annotated[float, Meta(ge=0, le=1)]
    device: DeviceId | None = None  # whose stage, as in `load`


class Loaded(Message, frozen=True, tag="loaded"):
    """The stage is ready for sessions."""

    epoch: Count
    seconds: Seconds
    memory_bytes: Size
    cache_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]  # that one session can have
    is_exact_in_chunks: bool = False  # whether results have the same bits in steps of any size
    keeps_sessions: bool = False  # whether it keeps caches on disk, and can restore them
    moves_caches: bool = False  # whether it sends caches to other stages, and takes them
    takes_drafts: bool = False  # whether it computes guesses at tokens, and forgets the wrong ones


class Unload(Message, frozen=True, tag="unload"):
    """Free everything that belongs to this plan, on every device."""

    epoch: Count


class Unloaded(Message, frozen=True, tag="unloaded"):
    """The plan is freed. A worker also sends this unasked, when a stage process of it has ended."""

    epoch: Count  # 0: of no plan
    device: DeviceId | None = None  # the device whose process ended
    is_hung: bool = False  # whether its process did not answer any more, and was ended


class StepFailed(Told, frozen=True, tag="step_failed"):
    """A stage could not do a step. Sent over control, since the chain itself may be broken."""

    epoch: Count
    session: SessionName
    step: Count
    kind: Annotated[str, Meta(max_length=64)]
    position: Count | None = None  # need_replay: where the stage's cache ends


# --- weights: the master sends, a worker stores


class Chunk(Message, frozen=True, tag="chunk"):
    """A part of a tensor. Payload: its bytes from `offset`. The last chunk ends the tensor."""

    digest: Hex
    offset: Size
    total: Size  # bytes of the whole tensor


class Stored(Message, frozen=True, tag="stored"):
    """The tensor is whole, has the right digest and is durable on disk."""

    digest: Hex


class Rejected(Told, frozen=True, tag="rejected"):
    """The tensor was not stored. Unless `final`, the sender may send it again from 0."""

    digest: Hex
    kind: Annotated[str, Meta(max_length=64)]
    final: bool = False
