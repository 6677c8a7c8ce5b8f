"""The events of a connection, for its caller (the shell)."""

from dataclasses import dataclass
from typing import TypeAlias

from potluck.wire.messages import Message, NodeInfo, Purpose


@dataclass(frozen=True, slots=True)
class Opened:
    """The handshake succeeded. From now on messages may be sent."""

    peer: NodeInfo
    purpose: Purpose
    version: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message that is not an answer; a request if it has an `id`. The caller owns the payload."""

    message: Message
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to our request with this id: the message of its answer type, or `Error`."""

    request: int
    message: Message


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer said goodbye, or has received ours. Close the socket."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended without a goodbye, or the heartbeats stopped. Close the socket."""

    reason: str


Event: TypeAlias = Opened | Received | Answered | Closed | Lost
