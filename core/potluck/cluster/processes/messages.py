"""The messages between a node and its stage process, over the process's stdin and stdout.

Both are the same program on the same computer, so there is no negotiation. A frame is a 4-byte
big-endian length and a MessagePack value, which is decoded into one of the two unions below.
Requests and answers are paired as between nodes, by `id` and `re`, and are the same messages where
the stage process does what another node asks. `error` answers a request that failed.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec

from potluck.model.byte_runs import ByteRuns
from potluck.net.interfaces import Interface
from potluck.wire.cache_messages import TakeSessions, TakingSessions
from potluck.wire.measuring_messages import (
    MeasureStage,
    Profile,
    Profiled,
    StageMeasured,
    SumsMeasured,
)
from potluck.wire.messages import (
    Assign,
    CacheHop,
    DeviceId,
    DeviceInfo,
    Error,
    HeldStage,
    Hop,
    Load,
    Message,
    NodeInfo,
    PlanBefore,
    PlanKey,
    RankPlace,
    StepFailed,
    TensorInfo,
)

MAX_FRAME = 256 << 20  # a stage's tensor list with its paths; far above any model's
_LENGTH_BYTES = 4


class TensorFile(TensorInfo, frozen=True, kw_only=True):
    """A tensor, and where its bytes are on this computer's disk."""

    path: str
    offset: int
    runs: ByteRuns | None = None  # its bytes among those from `offset` on; None: all that follow

    @classmethod
    def of(
        cls, info: TensorInfo, path: Path, offset: int = 0, runs: ByteRuns | None = None
    ) -> "TensorFile":
        return cls(**msgspec.structs.asdict(info), path=str(path), offset=offset, runs=runs)


class Start(Message, frozen=True, tag="start"):
    """The first frame: the node's identity, and what it lends."""

    identity_folder: str
    me: NodeInfo
    memory_limit: int | None = None  # bytes of the RAM, and of each GPU
    threads: int | None = None
    device: DeviceId | None = None  # None: the best one; its process reports the other ones too
    cpus: tuple[int, ...] = ()  # if the CPU is offered as several devices, the threads of each
    sessions_folder: str | None = None  # where conversations' caches are kept; None: they are not
    sessions_limit: int = 0  # bytes that they may take
    kernels_folder: str | None = None  # where compiled kernels are kept; None: they are not


class StageSettings(Message, frozen=True, tag="stage_settings"):
    """All that can change while the process runs, whichever of it has changed.

    The identity's folder may have changed as well (a home joined or left, a computer revoked): it
    is read again. `memory` answers it.
    """

    memory_limit: int | None = None  # bytes of the RAM, and of each GPU
    threads: int | None = None  # for what is loaded or measured next; None: one for each core


class LoadStage(Assign, frozen=True, kw_only=True, tag="load_stage"):
    """Load the layers of this assignment and compute with them from now on.

    Layers in memory that have the same content are kept. Content means home, model id, seed,
    config, scheme and cache.
    """

    home: str
    tensors: tuple[TensorFile, ...] = ()
    next_hop: Hop | None
    previous: str | None = None  # node id of the stage before; None: the driver
    ranks: RankPlace | None = None  # the group that this stage is a rank of
    cache_hops: tuple[CacheHop, ...] = ()  # where the caches go of prompts that it reads for others
    before: PlanBefore | None = None  # the plan whose conversations it takes over
    key: PlanKey | None = None  # who knows it may fetch the caches of this plan

    @classmethod
    def of(
        cls, assign: Assign, load: Load, *, home: str, tensors: Iterable[TensorFile]
    ) -> "LoadStage":
        """The load of an assigned stage."""
        fields = msgspec.structs.asdict(assign) | {
            "home": home,
            "tensors": tuple(tensors),
            "next_hop": load.next_hop,
            "previous": load.previous,
            "ranks": load.ranks,
            "cache_hops": load.cache_hops,
            "before": load.before,
            "key": load.key,
        }
        return cls(**fields)


class TrySums(Message, frozen=True, tag="try_sums"):
    """Sum with other stage processes, to see how long that takes."""

    home: str
    ranks: RankPlace


class EndSums(Message, frozen=True, tag="end_sums"):
    """Nobody waits any more for what `try_sums` asked for."""


class EndLinks(Message, frozen=True, tag="end_links"):
    """End the connections in networks of this computer that are not used."""

    own: tuple[Interface, ...]


class HealthCheck(Message, frozen=True, tag="health_check"):
    """Asks whether the process hangs. It is answered by a thread that does not compute."""


class UnloadStage(Message, frozen=True, tag="unload_stage"):
    """Take the stage out of force and free its memory.

    With `leaves_caches`, the caches of its sessions stay for a moment: stages of the next plan may fetch them.
    """

    leaves_caches: bool = False


class Quantise(Message, frozen=True, tag="quantise"):
    """Write the packed bytes of one matrix to a file. Several matrices are written at a time."""

    config: dict[str, object]
    shape: tuple[int, int]  # of the matrix
    dtype: str  # of the packed bytes: one of `formats.PACKED_DTYPES`
    parts: tuple[TensorFile, ...]  # the tensors that the matrix is stored in
    path: str  # of the file to write, which does not exist yet


Request: TypeAlias = (
    Profile | LoadStage | MeasureStage | TakeSessions | TrySums | UnloadStage | Quantise
)
ToStage: TypeAlias = Start | StageSettings | HealthCheck | EndSums | EndLinks | Request


class Ready(Message, frozen=True, tag="ready"):
    """The process is up. Its own device is first; the best device's process lists all others."""

    devices: tuple[DeviceInfo, ...]
    activation_port: int


class Health(Message, frozen=True, tag="health"):
    """The answer to `health_check`."""

    is_stuck: bool  # whether a step is under way for much longer than it should take
    steps: int = 0  # that were begun since the start


class Memory(Message, frozen=True, tag="memory"):
    """The memory that the devices lend now. Sent when it has changed by more than a little, and after new settings."""

    devices: tuple[DeviceInfo, ...]


class LoadProgress(Message, frozen=True, tag="load_progress"):
    """How many bytes of the weights are in memory already."""

    epoch: int
    done: int  # bytes
    total: int


class StageLoaded(Message, frozen=True, tag="stage_loaded"):
    """The answer to `load_stage`."""

    seconds: float
    memory_bytes: int
    cache_tokens: int  # tokens that one session can hold
    layers_kept: int  # layers that were in memory before
    layers_loaded: int
    is_exact_in_chunks: bool = False  # whether results have the same bits in steps of any size
    keeps_sessions: bool = False  # whether it keeps caches on disk, and can restore them
    takes_drafts: bool = False  # whether it computes guesses at tokens, and forgets the wrong ones


class StageUnloaded(Message, frozen=True, tag="stage_unloaded"):
    """The answer to `unload_stage`."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The weights that the process has in memory, and the home whose they are."""

    home: str
    stage: HeldStage


class Holds(Message, frozen=True, tag="holds"):
    """What the process holds: sent whenever that has changed, by a load or an unload."""

    held: Held | None  # None: nothing


class Quantised(Message, frozen=True, tag="quantised"):
    """The answer to `quantise`: digest and size of the file."""

    digest: str
    nbytes: int


Answer: TypeAlias = (
    Profiled
    | StageLoaded
    | StageMeasured
    | TakingSessions
    | SumsMeasured
    | StageUnloaded
    | Quantised
)
FromStage: TypeAlias = Ready | Health | Memory | LoadProgress | Holds | StepFailed | Answer | Error

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
