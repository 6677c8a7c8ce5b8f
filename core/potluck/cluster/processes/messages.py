"""The messages between a node and its stage process, over the process's stdin and stdout.

Both are the same program on the same computer, so there is no negotiation. A frame is a 4-byte
big-endian length and a MessagePack value, which is decoded into one of the two unions below.
"""

import os
import sys
from collections.abc import Iterable
from typing import BinaryIO, TypeAlias

import msgspec

from potluck.model.schemes import Cache, Scheme
from potluck.wire.measuring_messages import Profile, Profiled, StageTimes
from potluck.wire.messages import (
    Assign,
    DeviceId,
    DeviceInfo,
    HeldStage,
    Hop,
    NodeInfo,
    StepFailed,
    TensorInfo,
)

MAX_FRAME = 256 << 20  # a stage's tensor list with its paths; far above any model's
_LENGTH_BYTES = 4


class StageMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """Base class of the messages in the unions below."""


class StageRequest(StageMessage, frozen=True, kw_only=True):
    """Base class of the messages that are answered."""

    request: int = 0  # its number, which the answer repeats; set when it is sent


class TensorFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where a tensor's bytes are on this computer's disk."""

    info: TensorInfo
    path: str
    offset: int


class Start(StageMessage, frozen=True, tag="start"):
    """The first frame: the node's identity, and what it lends."""

    identity_folder: str
    me: NodeInfo
    memory_limit: int | None = None  # bytes of the RAM, and of each GPU
    threads: int | None = None
    device: DeviceId | None = None  # None: the best one; its process reports the other ones too
    cpus: tuple[int, ...] = ()  # if the CPU is offered as several devices, the threads of each


class StageSettings(StageMessage, frozen=True, tag="stage_settings"):
    """All that can change while the process runs, whichever of it has changed.

    The identity's folder may have changed as well (a home joined or left, a computer revoked): it
    is read again.
    """

    memory_limit: int | None = None  # bytes of the RAM, and of each GPU
    threads: int | None = None  # for what is loaded or measured next; None: one for each core


class ProfileLayer(StageRequest, frozen=True, tag="profile_layer"):
    """Measure a decoder layer of each kind that this model has, and its head."""

    wanted: Profile


class LoadStage(StageRequest, frozen=True, tag="load_stage"):
    """Load these layers and compute with them from now on.

    Layers in memory that have the same content are kept. Content means home, model id, seed,
    config, scheme and cache.
    """

    home: str
    epoch: int
    model_id: str  # identifies the weights, together with the seed
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
    seed: int | None = None  # of random weights, made by the process: no tensors are given

    @classmethod
    def of(
        cls,
        assign: Assign,
        *,
        home: str,
        tensors: Iterable[TensorFile],
        next_hop: Hop | None,
        previous: str | None,
    ) -> "LoadStage":
        """The load of an assigned stage."""
        return cls(
            home=home,
            epoch=assign.epoch,
            model_id=assign.model_id,
            config=assign.config,
            scheme=assign.scheme,
            cache=assign.cache,
            layers=assign.layers,
            embedding=assign.embedding,
            head=assign.head,
            context=assign.context,
            tensors=tuple(tensors),
            next_hop=next_hop,
            previous=previous,
            seed=assign.seed,
        )


class TimeStage(StageRequest, frozen=True, tag="time_stage"):
    """Time the parts of one token in the loaded stage, once."""

    epoch: int
    position: int  # number of cached tokens


class UnloadStage(StageRequest, frozen=True, tag="unload_stage"):
    """Take the stage out of force and free its memory."""


class Quantise(StageRequest, frozen=True, tag="quantise"):
    """Write the packed bytes of one matrix to a file. Several matrices are written at a time."""

    config: dict[str, object]
    shape: tuple[int, int]  # of the matrix
    dtype: str  # of the packed bytes: one of `formats.PACKED_DTYPES`
    parts: tuple[TensorFile, ...]  # the tensors that the matrix is stored in
    path: str  # of the file to write, which does not exist yet


ToStage: TypeAlias = (
    Start | StageSettings | ProfileLayer | LoadStage | TimeStage | UnloadStage | Quantise
)


class Ready(StageMessage, frozen=True, tag="ready"):
    """The process is up. Its own device is first; the best device's process lists all others."""

    devices: tuple[DeviceInfo, ...]
    activation_port: int


class Memory(StageMessage, frozen=True, tag="memory"):
    """The memory that the devices lend now. Sent when it has changed by more than a little."""

    devices: tuple[DeviceInfo, ...]


class LayerProfiled(StageMessage, frozen=True, tag="layer_profiled"):
    """The answer to `profile_layer`."""

    request: int
    profiled: Profiled


class LoadProgress(StageMessage, frozen=True, tag="load_progress"):
    """How many bytes of the weights are in memory already."""

    epoch: int
    done: int  # bytes
    total: int


class StageLoaded(StageMessage, frozen=True, tag="stage_loaded"):
    """The answer to `load_stage`."""

    request: int
    seconds: float
    memory_bytes: int
    cache_tokens: int  # tokens that one session can hold
    layers_kept: int  # layers that were in memory before
    layers_loaded: int


class StageTimed(StageMessage, frozen=True, tag="stage_timed"):
    """The answer to `time_stage`."""

    request: int
    times: StageTimes


class StageUnloaded(StageMessage, frozen=True, tag="stage_unloaded"):
    """The answer to `unload_stage`."""

    request: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that the process has in memory, and the home whose they are."""

    home: str
    stage: HeldStage


class Holds(StageMessage, frozen=True, tag="holds"):
    """What the process holds: sent whenever that has changed, by a load or an unload."""

    held: Held | None  # None: nothing


class Quantised(StageMessage, frozen=True, tag="quantised"):
    """The answer to `quantise`: digest and size of the file."""

    request: int
    digest: str
    nbytes: int


class RequestFailed(StageMessage, frozen=True, tag="request_failed"):
    """The answer to a request that failed."""

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
    """Encode a message as one frame."""
    body = _encoder.encode(message)
    assert len(body) <= MAX_FRAME
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def read_frame(stream: BinaryIO) -> bytes | None:
    """Block until a whole frame has arrived, and return its body. None: the other side is gone."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    body = stream.read(length)
    return body if len(body) == length else None


def claim_stdout() -> BinaryIO:
    """The pipe to the node. Other output on stdout goes to stderr from now on, which is the log."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe
