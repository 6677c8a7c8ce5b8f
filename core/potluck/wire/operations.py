"""Tables: the messages that a connection knows, their answers, and their payloads."""

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from potluck.ids import Role
from potluck.model.vision.spec import MOST_PIXELS
from potluck.wire.activation_messages import (
    Attach,
    CloseSession,
    Dtype,
    Forward,
    KeepSession,
    OpenSession,
    RestoreSession,
    Result,
    TensorHeader,
    TrimSession,
)
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    ExpectCache,
    FetchCache,
    ForgetBefore,
    RankHas,
    SendCache,
    TakeCache,
    TakeSessions,
    TakingSessions,
)
from potluck.wire.handover_messages import (
    Follow,
    Followed,
    Invite,
    Invited,
    TakenOver,
    TakeOver,
)
from potluck.wire.measuring_messages import (
    Blob,
    BlobReceived,
    LinkMeasured,
    MeasureLink,
    MeasureStage,
    MeasureSums,
    Profile,
    Profiled,
    StageMeasured,
    SumsMeasured,
)
from potluck.wire.messages import (
    MAX_TENSORS,
    Assign,
    Chunk,
    Error,
    Goodbye,
    Hello,
    Load,
    Loaded,
    Message,
    Need,
    Ping,
    Pong,
    Purpose,
    Rejected,
    Revoked,
    Status,
    StepFailed,
    StillNeeded,
    Stored,
    TensorInfo,
    Unload,
    Unloaded,
    WarmingUp,
    Welcome,
)
from potluck.wire.passing_messages import Expect, Expecting, NeedTensors, PassedOn, PassOn
from potluck.wire.picture_messages import (
    MAX_ROWS_BYTES,
    GiveRows,
    NotRead,
    ReadPicture,
    RowsRead,
    ShowPicture,
)
from potluck.wire.rank_messages import (
    AbortStep,
    AnswerSums,
    ChooseSums,
    JoinRanks,
    OfferSums,
    Partial,
)
from potluck.wire.spare_messages import Keep, Keeping
from potluck.wire.wheel_messages import (
    ReleaseHeard,
    SendWheels,
    TellRelease,
    WantWheels,
    WheelsHere,
)

Table: TypeAlias = Mapping[str, type[Message]]


def op_of(message: Message | type[Message]) -> str:
    """The name of a message, which is sent under `op`."""
    return str(message.__struct_config__.tag)


def table(*messages: type[Message]) -> dict[str, type[Message]]:
    """Make a table of message types, keyed by name."""
    return {op_of(message): message for message in messages}


HANDSHAKE: Final[Table] = table(Hello, Welcome, Error, Goodbye)
_ALWAYS: Final[Table] = table(Ping, Pong, Goodbye, Error)

# fmt: off
BY_PURPOSE: Final[Mapping[Purpose, Table]] = {
    "control": _ALWAYS | table(
        Status, Revoked, Profile, Profiled, MeasureLink, LinkMeasured, Blob, BlobReceived,
        Assign, Need, Load, WarmingUp, Loaded, MeasureStage, StageMeasured, Unload, Unloaded,
        StepFailed, Expect, Expecting, PassOn, PassedOn, Keep, Keeping, StillNeeded,
        TakeOver, TakenOver, Invite, Invited, Follow, Followed, MeasureSums, SumsMeasured,
        TakeSessions, TakingSessions,
    ),
    "activations": _ALWAYS | table(
        Attach, OpenSession, Forward, Result, TrimSession, CloseSession, KeepSession, RestoreSession,
        ExpectCache, SendCache, TakeCache, CacheRows, CacheReceived, CacheSent, CacheGivenUp,
        FetchCache, ForgetBefore, RankHas,
        ShowPicture, ReadPicture, RowsRead, NotRead, GiveRows, Blob, BlobReceived,
    ),
    "weights": _ALWAYS | table(Chunk, Stored, Rejected, Blob, BlobReceived),
    "ranks": _ALWAYS | table(JoinRanks, OfferSums, AnswerSums, ChooseSums, Partial, AbortStep),
    "wheels": _ALWAYS | table(
        WantWheels, WheelsHere, SendWheels, Chunk, Stored, Rejected, TellRelease, ReleaseHeard,
    ),
}
ALL: Final[Table] = {op: m for known in (HANDSHAKE, *BY_PURPOSE.values()) for op, m in known.items()}

# On control the master asks and a worker answers; from the wrong role, a message is unknown.
_FROM: Final[Mapping[Role, Table]] = {
    "master": table(
        Revoked, Profile, MeasureLink, Assign, Load, MeasureStage, Unload, Expect, PassOn, Keep,
        StillNeeded, TakeOver, Invite, Follow, MeasureSums, TakeSessions,
    ),
    "worker": table(
        Status, Profiled, LinkMeasured, Need, WarmingUp, Loaded, StageMeasured, Unloaded, StepFailed,
        Expecting, PassedOn, Keeping, TakenOver, Invited, Followed, SumsMeasured,
        TakingSessions,
    ),
}
# fmt: on


def known_from(peer: Role | None, purpose: Purpose) -> Table:
    """The messages that a peer may send on such a connection; `peer` None: of both roles."""
    known = BY_PURPOSE[purpose]
    if peer is None:
        return known
    others = _FROM["worker" if peer == "master" else "master"]
    return {op: message for op, message in known.items() if op not in others}


ANSWERS: Final[Mapping[type[Message], type[Message]]] = {
    Ping: Pong,
    Profile: Profiled,
    MeasureLink: LinkMeasured,
    MeasureSums: SumsMeasured,
    Blob: BlobReceived,
    Assign: Need,
    Load: Loaded,
    MeasureStage: StageMeasured,
    Unload: Unloaded,
    TakeSessions: TakingSessions,
    Expect: Expecting,
    PassOn: PassedOn,
    Keep: Keeping,
    WantWheels: WheelsHere,
    TellRelease: ReleaseHeard,
    TakeOver: TakenOver,
    Invite: Invited,
    Follow: Followed,
}
"""The answer type of each request; `error` may answer any request."""

_TENSORS: Final = Annotated[tuple[TensorInfo, ...], Meta(max_length=MAX_TENSORS)]
BULK: Final[Mapping[type[Message], object]] = {
    Assign: _TENSORS,
    Keep: _TENSORS,
    Keeping: NeedTensors,
    Need: NeedTensors,
    Expect: NeedTensors,
    PassOn: NeedTensors,
}
"""The type of the field `tensors`, which travels as payload, because it grows with the model."""

_ITEM_BYTES: Final[Mapping[Dtype, int]] = {
    "F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "I8": 1,
}  # fmt: skip


def check_payload(message: Message, nbytes: int) -> str | None:
    """Return what is wrong with a payload of this length for this message, or None.

    It is called before the payload's memory is allocated, so that a wrong payload costs no memory.
    """
    match message:
        case Forward(tensor=header) | CacheRows(tensor=header):
            expected = _ITEM_BYTES[header.dtype]
            for axis in header.shape:
                expected *= axis
            return None if nbytes == expected else f"a tensor of {expected} bytes has {nbytes}"
        case ShowPicture(tensor=tensor) | ReadPicture(tensor=tensor):
            return _check_pixels(tensor, nbytes)
        case RowsRead(tensor=tensor) | GiveRows(tensor=tensor):
            return _check_rows(tensor, nbytes)
        case Chunk(offset=offset, total=total):
            return None if offset + nbytes <= total else f"bytes beyond the tensor's {total}"
        case Partial():
            return f"{nbytes} bytes, which are no rows of F32" if nbytes % 4 else None
        case Assign() | Need() | Expect() | PassOn() | Keep() | Keeping() | Blob():
            return None
        case _:
            return "a payload that it does not carry" if nbytes else None


def _check_pixels(tensor: TensorHeader, nbytes: int) -> str | None:
    """What is wrong with the pixels of a picture, or None."""
    if tensor.dtype != "U8" or len(tensor.shape) != 3 or tensor.shape[2] != 3:
        return "a picture that is no U8 [H, W, 3]"
    height, width, _ = tensor.shape
    if not 0 < height * width <= MOST_PIXELS:
        return f"a picture of {width} x {height} pixels"
    expected = 3 * height * width
    return None if nbytes == expected else f"a picture of {expected} bytes has {nbytes}"


def _check_rows(tensor: TensorHeader, nbytes: int) -> str | None:
    """What is wrong with rows of a picture, or None."""
    if tensor.dtype != "F32" or len(tensor.shape) != 2 or 0 in tensor.shape:
        return "rows of a picture that are no F32 [rows, numbers]"
    rows, numbers = tensor.shape
    expected = 4 * rows * numbers
    if rows > 1 and expected > MAX_ROWS_BYTES:
        return f"{rows} rows of a picture of {numbers} numbers each"
    return None if nbytes == expected else f"rows of {expected} bytes have {nbytes}"
