"""What a node and its stage process say to each other, over the process's stdin and stdout.

Both are the same program on the same computer, so there is no negotiation: a frame is a 4-byte
big-endian length and a MessagePack value, decoded into one of the two unions below.
"""

from typing import BinaryIO, TypeAlias

import msgspec

from potluck.model.schemes import Cache, Scheme
from potluck.wire.measuring_messages import StageTimes
from potluck.wire.messages import (
    DeviceId,
    DeviceInfo,
    Hop,
    NodeInfo,
    StepFailed,
    TensorInfo,
)

MAX_FRAME = 256 << 20  # a stage's tensor list with its paths; far above any model's
_LENGTH_BYTES = 4


class StageMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """What the unions below are made of."""


class TensorFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tensor's bytes stand on this computer's disk."""

    info: TensorInfo
    path: str
    offset: int


class Start(StageMessage, frozen=True, tag="start"):
    """The first frame: who this node is, and what it lends."""

    identity_folder: str
    me: NodeInfo
    memory_limit: int | None = None  # bytes of the RAM, and of each GPU
    threads: int | None = None
    device: DeviceId | None = None  # None: the best one; that process knows of the others too
    cpus: tuple[int, ...] = ()  # threads of each of the devices that the CPU is offered as


class Lend(StageMessage, frozen=True, tag="lend"):
    """The user changed how much memory this computer lends."""

    memory_limit: int | None


class ComputeWith(StageMessage, frozen=True, tag="compute_with"):
    """What is loaded or measured next computes with so many threads."""

    threads: int | None  # None: one for each core


class TrustChanged(StageMessage, frozen=True, tag="trust_changed"):
    """The identity's folder changed (a home joined or left, a computer revoked): read it again."""


class ProfileLayer(StageMessage, frozen=True, tag="profile_layer"):
    """Measure a decoder layer of each kind that this model has, and its head."""

    request: int
    config: dict[str, object]
    scheme: Scheme
    tokens: int
    cache: Cache = "full"


class LoadStage(StageMessage, frozen=True, tag="load_stage"):
    """Compute with these layers from now on, instead of what was loaded before.

    Of the layers that are loaded already, those of the same content are kept: of the same home, model id,
    seed, config, scheme and cache.
    """

    request: int
    home: str
    epoch: int
    model_id: str  # says with the seed which weights these are
    config: dict[str, object]
    scheme: Scheme
    layers: tuple[int, int]
    embedding: bool
    head: bool
    context: int
    tensors: tuple[TensorFile, ...]
    next_hop: Hop | None
    cache: Cache = "full"
    previous: str | None = None  # node id of the stage before; None: the driver
    seed: int | None = None  # of random weights, made here: there are no tensors


class TimeStage(StageMessage, frozen=True, tag="time_stage"):
    """Time the parts of one token in the loaded stage, once."""

    request: int
    epoch: int
    position: int  # so many tokens are cached


class UnloadStage(StageMessage, frozen=True, tag="unload_stage"):
    """Give the memory back."""

    request: int


class TellHeld(StageMessage, frozen=True, tag="tell_held"):
    """Say what is held now. Answered by `holds`."""

    request: int


class Quantise(StageMessage, frozen=True, tag="quantise"):
    """Write the packed bytes of one matrix to a file, while others are written too."""

    request: int
    config: dict[str, object]
    shape: tuple[int, int]  # of the matrix
    dtype: str  # of the packed bytes: one of `formats.PACKED_DTYPES`
    parts: tuple[TensorFile, ...]  # that it is stored in
    path: str  # of the file, which is not there yet


ToStage: TypeAlias = (
    Start
    | Lend
    | ComputeWith
    | TrustChanged
    | ProfileLayer
    | LoadStage
    | TimeStage
    | UnloadStage
    | TellHeld
    | Quantise
)


class Ready(StageMessage, frozen=True, tag="ready"):
    """The process is up: its own device first, and of the best device's process the others too."""

    devices: tuple[DeviceInfo, ...]
    activation_port: int


class Memory(StageMessage, frozen=True, tag="memory"):
    """What the devices lend now; sent when it changed by more than a little."""

    devices: tuple[DeviceInfo, ...]


class LayerProfiled(StageMessage, frozen=True, tag="layer_profiled"):
    """The answer to `profile_layer`."""

    request: int
    device: DeviceInfo
    decode_ms: tuple[float, ...]  # of each kind of layer, as in `profiled`
    prefill_ms: tuple[float, ...]
    head_ms: float


class LoadProgress(StageMessage, frozen=True, tag="load_progress"):
    """How many bytes of the weights are in memory."""

    epoch: int
    done: int  # bytes
    total: int


class StageLoaded(StageMessage, frozen=True, tag="stage_loaded"):
    """The answer to `load_stage`."""

    request: int
    seconds: float
    memory_bytes: int
    cache_tokens: int  # that one session can hold
    layers_kept: int  # that were loaded before
    layers_loaded: int


class StageTimed(StageMessage, frozen=True, tag="stage_timed"):
    """The answer to `time_stage`."""

    request: int
    times: StageTimes


class StageUnloaded(StageMessage, frozen=True, tag="stage_unloaded"):
    """The answer to `unload_stage`."""

    request: int


class HeldSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that the stage in force knows."""

    session: str
    position: int  # how many tokens are cached


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that the process has in memory, and the stage that computes with them.

    After a load that failed there may be weights, and no stage in force: `epoch` is None then.
    """

    home: str
    model_id: str
    seed: int | None  # of random weights
    scheme: Scheme
    cache: Cache
    layers: tuple[int, int]  # start, stop
    embedding: bool
    head: bool
    memory_bytes: int  # of the weights
    epoch: int | None = None  # of the stage in force
    context: int | None = None  # tokens that one of its sessions holds at most
    sessions: tuple[HeldSession, ...] = ()


class Holds(StageMessage, frozen=True, tag="holds"):
    """What the process holds: sent after every load and unload, and as the answer to `tell_held`."""

    held: Held | None  # None: nothing
    request: int | None = None  # that this answers


class Quantised(StageMessage, frozen=True, tag="quantised"):
    """The answer to `quantise`: what is in the file."""

    request: int
    digest: str
    nbytes: int


class RequestFailed(StageMessage, frozen=True, tag="request_failed"):
    """The answer to a request that could not be done."""

    request: int
    kind: str  # a `code` of potluck.errors
    message: str
    data: dict[str, str | int | float | bool | None] = {}


FromStage: TypeAlias = (
    Ready
    | Memory
    | LayerProfiled
    | LoadProgress
    | StageLoaded
    | StageTimed
    | StageUnloaded
    | Holds
    | Quantised
    | RequestFailed
    | StepFailed
)

_encoder = msgspec.msgpack.Encoder()
decode_to_stage = msgspec.msgpack.Decoder[ToStage](ToStage).decode
decode_from_stage = msgspec.msgpack.Decoder[FromStage](FromStage).decode


def encode(message: msgspec.Struct) -> bytes:
    """One frame."""
    body = _encoder.encode(message)
    assert len(body) <= MAX_FRAME
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """Block until a whole frame is there; None when the other side is gone."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return body if len(body) == length else None
