"""The states of a connection and the steps between them, as a table.

A step that is not in the table is an error: ours if we send, the peer's if we receive.
"""

from enum import Enum
from typing import Final


class Side(Enum):
    """Which side this is: the one that dialled, or the one that listens."""

    DIALLER = "dialler"
    LISTENER = "listener"


class State(Enum):
    """The state of a connection."""

    QUIET = "nothing was said yet"
    SAID_HELLO = "we said hello and wait for welcome"
    AWAITING_HELLO = "the dialler has to say hello"
    OPEN = "messages go both ways"
    LEAVING = "we said goodbye; what is under way may still arrive"
    CLOSED = "it ended as agreed"
    LOST = "the peer is gone"
    FAILED = "one side broke the protocol, or refused the other"


class Step(Enum):
    """A step that may change a connection's state."""

    SEND_HELLO = 1
    RECEIVE_HELLO = 2
    RECEIVE_WELCOME = 3
    SEND = 4
    RECEIVE = 5
    SEND_GOODBYE = 6
    RECEIVE_GOODBYE = 7
    END_OF_STREAM = 8
    SILENCE = 9
    BREAK = 10


ENDED: Final = (State.CLOSED, State.LOST, State.FAILED)

_ENDS: Final = {
    Step.SEND_GOODBYE: State.CLOSED,
    Step.RECEIVE_GOODBYE: State.CLOSED,
    Step.END_OF_STREAM: State.LOST,
    Step.SILENCE: State.LOST,
    Step.BREAK: State.FAILED,
}

TRANSITIONS: Final[dict[State, dict[Step, State]]] = {
    State.QUIET: {Step.SEND_HELLO: State.SAID_HELLO},
    State.SAID_HELLO: {Step.RECEIVE_WELCOME: State.OPEN, **_ENDS},
    State.AWAITING_HELLO: {Step.RECEIVE_HELLO: State.OPEN, **_ENDS},
    State.OPEN: {
        Step.SEND: State.OPEN,
        Step.RECEIVE: State.OPEN,
        **_ENDS,
        Step.SEND_GOODBYE: State.LEAVING,  # what is under way may still arrive
    },
    State.LEAVING: {
        Step.RECEIVE: State.LEAVING,
        Step.RECEIVE_GOODBYE: State.CLOSED,
        Step.END_OF_STREAM: State.CLOSED,
        Step.SILENCE: State.CLOSED,
        Step.BREAK: State.FAILED,
    },
    State.CLOSED: {},
    State.LOST: {},
    State.FAILED: {},
}
