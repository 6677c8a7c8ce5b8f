"""What happens on a connection, as its shell is told."""

from dataclasses import dataclass
from typing import TypeAlias

from potluck.wire.messages import Message, NodeInfo, Purpose


@dataclass(frozen=True, slots=True)
class Opened:
    """Both sides agreed. From here on messages may be sent."""

    peer: NodeInfo
    purpose: Purpose
    version: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the peer's own accord: a request when it has an `id`. The payload is yours."""

    message: Message
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to our request with that id: the message that answers it, or `Error`."""

    request: int
    message: Message
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer said goodbye, or ours was heard. Close the socket."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended or the heartbeats did. Close the socket."""

    reason: str


Event: TypeAlias = Opened | Received | Answered | Closed | Lost
