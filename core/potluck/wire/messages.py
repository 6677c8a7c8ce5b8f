"""Every message that one node sends another, as immutable values.

A message is a MessagePack map with its name under `op`; a request carries an `id`, its answer the
same number under `re`. Decoding validates every field (`msgspec.convert`) and names the wrong one.
Pure values: what they mean in sequence is in `core/PROTOCOL.md`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

# Limits, each with its reason. They bound what a hostile header can make us build.
Name = Annotated[str, Meta(max_length=128)]  # shown in a list, one line
Hex = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]  # SHA-256
SessionName = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]  # a sentence for a person
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Size = Annotated[int, Meta(ge=0, lt=1 << 50)]  # bytes; a petabyte is nobody's home
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Dtype = Literal["F32", "F16", "BF16", "I32", "I64", "U8", "I8"]  # as safetensors names them
Scheme = Literal["f32", "bf16"]
Purpose = Literal["control", "activations", "weights"]
Shape = Annotated[tuple[Count, ...], Meta(max_length=8)]

MAX_ADDRESSES = 16  # a computer with more interfaces is none of a home
MAX_TENSORS = 1 << 17  # a mixture of experts with 128 layers of 256 experts has 98,304
MAX_TOKENS = 1 << 20  # one forward; the longest context of any known model


class Address(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[str, Meta(min_length=1, max_length=255)]
    port: Port


Addresses = Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A device that computes: `kind` and `index` name it (`cuda:0`), `name` is for people."""

    kind: Literal["cuda", "mps", "cpu"]
    index: Count = 0
    name: Name = ""
    memory_total: Size
    memory_free: Size  # what this node lends, now


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    node_id: Hex
    name: Name
    version: Annotated[str, Meta(max_length=32)]  # of the program
    os: Annotated[str, Meta(max_length=64)]
    arch: Annotated[str, Meta(max_length=32)]
    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=16)] = ()


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=256)]
    dtype: Dtype
    shape: Shape
    digest: Hex
    nbytes: Size


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stage sends its hidden states."""

    node_id: Hex
    addresses: Addresses  # of the next stage's activation listener


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", omit_defaults=True):
    """`id` asks for an answer; `re` is the `id` that this message answers."""

    id: Count | None = None
    re: Count | None = None


# --- every connection


class Hello(Message, tag="hello"):
    versions: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=16)]
    purpose: Purpose
    node: NodeInfo


class Welcome(Message, tag="welcome"):
    version: Count
    node: NodeInfo


class Ping(Message, tag="ping"):
    pass


class Pong(Message, tag="pong"):
    pass


class Goodbye(Message, tag="goodbye"):
    reason: Text = ""


class Error(Message, tag="error"):
    kind: Annotated[str, Meta(max_length=64)]  # a `code` of potluck.errors, or "unknown_op"
    message: Text
    data: dict[str, str | int | float | bool | None] = {}


# --- control: the master asks, a worker answers


class Status(Message, tag="status"):
    """A worker tells what it lends, whenever that changes."""

    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=16)]
    paused: bool = False
    lent_to: Name | None = None  # the name of another home's master that has the devices


class Revoked(Message, tag="revoked"):
    """The members that the home no longer trusts, whole list, from its master alone."""

    node_ids: Annotated[tuple[Hex, ...], Meta(max_length=4096)]


class Profile(Message, tag="profile"):
    """Measure one decoder layer of this model on the best device."""

    config: dict[str, object]  # the model's config.json
    scheme: Scheme
    tokens: Annotated[int, Meta(ge=1, le=4096)]  # of the prefill chunk


class Profiled(Message, tag="profiled"):
    device: DeviceInfo
    decode_ms: Seconds  # one layer, one token
    prefill_ms: Seconds  # one layer, one chunk
    head_ms: Seconds  # final norm, lm_head and sampling, one token


class MeasureLink(Message, tag="measure_link"):
    """Measure the way from you to that peer."""

    node_id: Hex
    addresses: Addresses


class LinkMeasured(Message, tag="link_measured"):
    rtt_ms: Seconds  # median
    rtt_p95_ms: Seconds
    bytes_per_s: Annotated[float, Meta(ge=0)]
    address: Address  # the fastest of those offered


class Blob(Message, tag="blob"):
    """Payload that measures a link; the answer says how long it took to arrive."""


class BlobReceived(Message, tag="blob_received"):
    nbytes: Size
    seconds: Seconds  # from its first byte to its last


class Assign(Message, tag="assign"):
    """These layers are yours in this plan. Answered by `need`."""

    epoch: Count
    model_id: Hex
    config: dict[str, object]
    scheme: Scheme
    layers: tuple[Count, Count]  # start, stop
    embedding: bool
    head: bool
    context: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]  # tokens of one session at most
    tensors: Annotated[tuple[TensorInfo, ...], Meta(max_length=MAX_TENSORS)]


class NeedTensor(msgspec.Struct, frozen=True, kw_only=True):
    digest: Hex
    offset: Size  # bytes that are here already


class Need(Message, tag="need"):
    """What the store lacks, and where the stage will listen for activations."""

    epoch: Count
    tensors: Annotated[tuple[NeedTensor, ...], Meta(max_length=MAX_TENSORS)]
    activation_port: Port


class Load(Message, tag="load"):
    """All weights are there: load them. Answered by `loaded`, with `warming_up` before it."""

    epoch: Count
    next_hop: Hop | None  # None: the last stage, which answers the driver


class WarmingUp(Message, tag="warming_up"):
    epoch: Count
    progress: Annotated[float, Meta(ge=0, le=1)]
    eta_s: Seconds | None = None


class Loaded(Message, tag="loaded"):
    epoch: Count
    seconds: Seconds
    memory_bytes: Size


class Unload(Message, tag="unload"):
    epoch: Count


class Unloaded(Message, tag="unloaded"):
    epoch: Count


class StepFailed(Message, tag="step_failed"):
    """A stage could not do a step; travels over control, since the chain may be what broke."""

    epoch: Count
    session: SessionName
    step: Count
    kind: Annotated[str, Meta(max_length=64)]
    message: Text
    position: Count | None = None  # need_replay: where the stage's cache ends


# --- weights: the master sends, a worker stores


class Chunk(Message, tag="chunk"):
    """Payload: bytes of the tensor from `offset`. The last chunk ends the tensor."""

    digest: Hex
    offset: Size
    total: Size  # bytes of the whole tensor


class Stored(Message, tag="stored"):
    """The tensor is whole, has its digest and is safe on disk."""

    digest: Hex


class Rejected(Message, tag="rejected"):
    """The tensor was not stored; sending it again from 0 may help unless `final`."""

    digest: Hex
    kind: Annotated[str, Meta(max_length=64)]
    message: Text
    final: bool = False


# --- activations: along the chain of stages, from the driver and back to it


class OpenSession(Message, tag="open_session"):
    epoch: Count
    session: SessionName


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the stage with the head chooses a token. The choice depends on seed and position alone."""

    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0  # 0: greedy
    top_k: Count = 0  # 0: all
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    seed: Annotated[int, Meta(ge=0, lt=1 << 63)] = 0
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # None: none; n: the chosen and n best
    history: Annotated[tuple[Count, ...], Meta(max_length=MAX_TOKENS)] | None = None
    """Tokens so far, sent with a prompt's last chunk when a repetition penalty needs them."""


class TensorHeader(msgspec.Struct, frozen=True, kw_only=True):
    dtype: Dtype
    shape: Shape


class Forward(Message, tag="forward"):
    """Run these tokens of a session. Payload: token ids (I32, [T]) or hidden states ([T, D])."""

    epoch: Count
    session: SessionName
    step: Count  # counts up by one in a session; a repeated one is answered from memory
    position: Count  # of the first token; must be where the stage's cache ends
    tensor: TensorHeader
    sampling: Sampling | None = None  # None: a chunk of a prompt that needs no token
    compute_ms: Annotated[tuple[Seconds, ...], Meta(max_length=256)] = ()  # of the stages so far


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token_id: Count
    logprob: float


class Result(Message, tag="result"):
    """From the last stage to the driver: the chosen token, or that the chunk is done."""

    epoch: Count
    session: SessionName
    step: Count
    position: Count  # where every cache of the chain ends now
    token_id: Count | None = None
    logprob: float | None = None
    top: Annotated[tuple[TokenLogprob, ...], Meta(max_length=20)] = ()
    compute_ms: Annotated[tuple[Seconds, ...], Meta(max_length=256)] = ()


class TrimSession(Message, tag="trim_session"):
    """Forget what is cached from this position on."""

    epoch: Count
    session: SessionName
    position: Count


class CloseSession(Message, tag="close_session"):
    epoch: Count
    session: SessionName
