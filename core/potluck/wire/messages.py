"""Every message that one node sends another, as immutable values.

A message is a MessagePack map with its name under `op`. A request has an `id`, and its answer has
the same number under `re`. Decoding checks every field, and the error names the wrong one.
`core/PROTOCOL.md` describes the order of messages and its meaning.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from potluck.model.schemes import Cache, Scheme
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

Dtype = Literal["F32", "F16", "BF16", "I32", "I64", "U8", "I8"]  # as safetensors names them
Purpose = Literal["control", "activations", "weights"]

MAX_ADDRESSES = 16  # no computer of a home has more interfaces
MAX_TENSORS = 1 << 17  # a mixture of experts with 128 layers of 256 experts has 98,304
MAX_TOKENS = 1 << 20  # one forward; the longest context of any known model
MAX_REVOKED = 1024  # no home gives away so many computers
MAX_HISTORY = 1 << 17  # tokens of a repetition penalty's history; 5 bytes each at most
PREFIX_TOKENS = 64  # tokens of a session's beginning that one digest names, with all before them
PREFIX_BYTES = 16  # of such a digest


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


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a model, as in the model's manifest."""

    name: Annotated[str, Meta(max_length=256)]
    dtype: StoredDtype
    shape: Shape
    digest: Hex
    nbytes: Size


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """The next stage, to which a stage sends its hidden states."""

    node_id: Hex
    addresses: Addresses  # of the next stage's activation listener


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", omit_defaults=True):
    """A message. With an `id` it is a request; `re` is the `id` of the request that it answers."""

    id: Count | None = None
    re: Count | None = None


class _Told(Message, frozen=True):
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


class Error(_Told, frozen=True, tag="error"):
    """A request was not carried out. `re` is the id of the request."""

    kind: Annotated[str, Meta(max_length=64)]  # a `code` of potluck.errors, or "unknown_op"
    data: Annotated[dict[str, str | int | float | bool | None], Meta(max_length=64)] = {}


# --- control: the master asks, a worker answers


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
    epoch: Count | None = None
    context: Count | None = None  # tokens that one session holds at most


class Status(Message, frozen=True, tag="status"):
    """A worker tells what it lends and what it holds, whenever that changes."""

    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=16)]
    paused: bool = False
    leaving: bool = False  # it computes on for a moment, and then it is paused or gone
    lent_to: Name | None = None  # the name of another home's master that has the devices
    held: Annotated[tuple[HeldStage, ...], Meta(max_length=16)] = ()  # for the reader's home


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


class Unload(Message, frozen=True, tag="unload"):
    """Free everything that belongs to this plan, on every device."""

    epoch: Count


class Unloaded(Message, frozen=True, tag="unloaded"):
    """The plan is freed. A worker also sends this unasked, when it has lost a stage."""

    epoch: Count
    device: DeviceId | None = None  # the device that lost its stage
    is_hung: bool = False  # whether its process did not answer any more, and was ended


class StepFailed(_Told, frozen=True, tag="step_failed"):
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


class Rejected(_Told, frozen=True, tag="rejected"):
    """The tensor was not stored. Unless `final`, the sender may send it again from 0."""

    digest: Hex
    kind: Annotated[str, Meta(max_length=64)]
    final: bool = False


# --- activations: along the chain of stages, from the driver and back to it


class Attach(Message, frozen=True, tag="attach"):
    """From the driver to the last stage: send this epoch's results to me, on this connection."""

    epoch: Count


class OpenSession(Message, frozen=True, tag="open_session"):
    """Open a session, with an empty KV cache or with the beginning of another session's."""

    epoch: Count
    session: SessionName
    source: SessionName | None = None  # that other session; None: the cache is empty
    position: Count = 0  # how many of its tokens to begin with, or as many as are cached


_Prefix = Annotated[bytes, Meta(max_length=MAX_TOKENS // PREFIX_TOKENS * PREFIX_BYTES)]


class KeepSession(Message, frozen=True, tag="keep_session"):
    """The digests of a session's first tokens, under which stages may keep its cache on disk."""

    epoch: Count
    session: SessionName
    prefix: _Prefix


class RestoreSession(Message, frozen=True, tag="restore_session"):
    """Let an empty session begin with tokens that are kept on disk. Answered by `result`."""

    epoch: Count
    session: SessionName
    step: Count
    position: Count  # tokens of use, or that all stages before have restored
    prefix: _Prefix


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the stage with the head samples a token: seed and position make it reproducible."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0  # 0: greedy
    top_k: Count = 0  # 0: no limit
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # n: of the chosen and the n best
    history: Annotated[tuple[Count, ...], Meta(max_length=MAX_HISTORY)] | None = None
    """The token ids so far, sent with a prompt's last chunk if a repetition penalty needs them."""


class TensorHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a payload of numbers, which is row-major and little-endian."""

    dtype: Dtype
    shape: Shape


class Forward(Message, frozen=True, tag="forward"):
    """Run these tokens of a session. Payload: token ids (I32, [T]) or hidden states ([T, D])."""

    epoch: Count
    session: SessionName
    step: Count  # increases by one in a session; a repeated step gets its stored result
    position: Count  # of the first token; must equal the end of the stage's cache
    tensor: TensorHeader
    prompt_end: Count | None = None
    """Where the KV caches will end after the last chunk of a prompt. A stage makes room for the
    whole prompt before it computes the first chunk. None: no chunk follows."""
    sampling: Sampling | None = None  # None: no token is needed (a prompt's earlier chunk)
    compute_ms: Annotated[tuple[Seconds, ...], Meta(max_length=256)] = ()
    """One per stage so far; none of a stage that computed the token together with others."""
    more: Count = 0  # so many messages follow at once whose tokens are to be computed with this one


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token id and the natural logarithm of its probability."""

    token_id: Count
    logprob: float


class Result(Message, frozen=True, tag="result"):
    """From the last stage to the driver: the sampled token, or that the chunk is done."""

    epoch: Count
    session: SessionName
    step: Count
    position: Count  # where every cache of the chain ends now
    token_id: Count | None = None
    logprob: float | None = None
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=20)] = ()
    compute_ms: Annotated[tuple[Seconds, ...], Meta(max_length=256)] = ()
    more: Count = 0  # so many results follow at once of tokens that were computed with this one


class TrimSession(Message, frozen=True, tag="trim_session"):
    """Remove this position and all later ones from the session's KV cache."""

    epoch: Count
    session: SessionName
    position: Count


class CloseSession(Message, frozen=True, tag="close_session"):
    """Free the KV cache of a session."""

    epoch: Count
    session: SessionName
