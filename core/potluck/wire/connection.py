"""One connection between two nodes, without I/O: bytes and the time in, events and bytes out.

All protocol rules about a connection as a whole are in this file:

1. The dialler says `hello`. The listener answers `welcome` with the version that both speak, or an
   error with the reason. Before that, no other message is accepted, and only small headers are
   read.
2. A request has an `id`. Its answer has the same number under `re`; it is the answer type of the
   request, or `error`.
3. An unknown operation is answered with `error(kind="unknown_op")`; the connection stays open.
4. Heartbeats go both ways on control connections. A peer is lost after three missed heartbeats, not
   after one.
5. `goodbye` distinguishes a peer that leaves from a lost one.

The caller, called the shell here (`net/link.py`), owns the socket and the clock.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from potluck.errors import (
    LocalProtocolError,
    ProtocolError,
    RemoteError,
    RemoteProtocolError,
    VersionMismatchError,
)
from potluck.ids import Role, short
from potluck.wire.codec import UnknownOp
from potluck.wire.events import Answered, Closed, Event, Lost, Opened, Received
from potluck.wire.fields import MAX_TEXT
from potluck.wire.frame import (
    MAX_HANDSHAKE,
    MAX_HEADER,
    MAX_PAYLOAD,
    Buffer,
    Frame,
    FrameDecoder,
    encode,
)
from potluck.wire.lifecycle import ENDED, TRANSITIONS, Side, State, Step
from potluck.wire.messages import (
    Error,
    Goodbye,
    Hello,
    Message,
    NodeInfo,
    Ping,
    Pong,
    Purpose,
    Welcome,
)
from potluck.wire.operations import ANSWERS, HANDSHAKE, known_from, op_of
from potluck.wire.versions import PROTOCOL_VERSIONS, common_version

HEARTBEAT_INTERVAL_S: Final = 0.9  # three, and time to react, fit the 3 s that are promised
LOST_AFTER_S: Final = 3 * HEARTBEAT_INTERVAL_S + 0.1  # the third may be that late
OPENING_TIMEOUT_S: Final = 5.0  # hello takes one round trip; a busy computer takes a second
_RTTS: Final = 3  # round trips of which the shortest counts
_LATE_S: Final = HEARTBEAT_INTERVAL_S / 2  # a tick later than this means that this computer slept
_MAX_ID: Final = (1 << 31) - 1
_MAX_BEATS: Final = 16  # more than can be unanswered before the peer counts as lost


class Connection:
    """One side of a connection; `side` says which one.

    Obligations of the shell:
    - After every call but `get_buffer` and `forget`: write what `data_to_send` returns, in order.
    - After `buffer_updated`, `receive_eof` and `tick`: call `next_event` until it
      returns None.
    - Stop reading while the socket accepts no more bytes: the answers to a flood of requests must
      not fill the memory.
    - Call `tick` at the time that it returned. A ProtocolError or RemoteError from `next_event`
      ends the connection: write what is left to send, then close.

    Args:
        purpose: the dialler's purpose for the connection; None on the listener, which learns it
            from `hello`.
        peer_id: the node id from the peer's TLS certificate; the peer's `hello` or `welcome` must
            have the same.
        peer_role: the peer's role in the home, from the same certificate; None: accept the messages
            of both roles.
    """

    def __init__(
        self,
        side: Side,
        me: NodeInfo,
        *,
        now: float,
        purpose: Purpose | None = None,
        peer_id: str | None = None,
        peer_role: Role | None = None,
        versions: Sequence[int] = PROTOCOL_VERSIONS,
    ) -> None:
        assert (purpose is None) == (side is Side.LISTENER)
        self.side = side
        self.me = me
        self.peer: NodeInfo | None = None
        self.purpose: Purpose | None = purpose
        self.version: int | None = None
        self.rtt_s: float | None = None  # seconds, smoothed over heartbeats
        self.state = State.QUIET if side is Side.DIALLER else State.AWAITING_HELLO
        self._peer_id = peer_id
        self._peer_role: Role | None = peer_role
        self._versions = tuple(versions)
        self._decoder = FrameDecoder(
            MAX_PAYLOAD["handshake"], max_header=MAX_HANDSHAKE, known=HANDSHAKE
        )
        self._out: list[Buffer] = []
        self._events: deque[Event] = deque()
        self._last_id = 0
        self._requests: dict[int, type[Message]] = {}
        self._beats: dict[int, float] = {}  # our unanswered pings: id -> time
        self._last_rtts: deque[float] = deque(maxlen=_RTTS)
        self._heard = now
        self._now = now
        self._due = self._wake = now + OPENING_TIMEOUT_S

    @property
    def least_rtt_s(self) -> float | None:
        """The shortest of the last round trips: a busy computer prolongs some, a link all of them."""
        return min(self._last_rtts) if len(self._last_rtts) == _RTTS else None

    @property
    def is_ended(self) -> bool:
        """Whether the connection has ended."""
        return self.state in ENDED

    # --- sending

    def start(self) -> None:
        """Say hello. Only the dialler calls this, once."""
        self._step(Step.SEND_HELLO)
        assert self.purpose is not None
        self._write(Hello(versions=self._versions, purpose=self.purpose, node=self.me))

    def send(self, message: Message, payload: Buffer = b"") -> None:
        """Send a message that needs no answer, or an answer (`re`). The payload is not copied.

        Raises:
            LocalProtocolError: the connection is not open, or does not carry this message.
        """
        if self.state is not State.OPEN:
            self._step(Step.SEND)
        self._out.extend(encode(message, payload))

    def request(self, message: Message, payload: Buffer = b"") -> int:
        """Send a request. Returns the id that its `Answered` event will have."""
        if type(message) not in ANSWERS:
            raise LocalProtocolError(f"Nothing answers `{op_of(message)}`.")
        number = self._next_id()
        self.send(msgspec.structs.replace(message, id=number), payload)
        self._requests[number] = type(message)
        return number

    def forget(self, request: int) -> None:
        """Stop waiting for this answer; if it still arrives, it is dropped."""
        self._requests.pop(request, None)

    def goodbye(self, reason: str = "") -> None:
        """Say goodbye. Nothing can be sent afterwards. No effect if the connection has ended."""
        if self.state in (State.LEAVING, *ENDED):
            return
        self._step(Step.SEND_GOODBYE)
        self._write(Goodbye(reason=reason))

    def data_to_send(self) -> list[Buffer]:
        """The buffers to write now, in order. Each buffer is returned once."""
        out, self._out = self._out, []
        return [buffer for buffer in out if len(buffer)]

    # --- receiving

    @property
    def missing(self) -> int:
        """Bytes of a payload that the peer has begun to send, and that were not received yet."""
        return self._decoder.missing

    def get_buffer(self) -> memoryview:
        """The buffer for the socket's next bytes. Payloads are received into their own memory."""
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int, now: float) -> None:
        """Process the bytes that were put into the buffer; `nbytes` is their number."""
        self._now = self._heard = now
        if not self.is_ended:
            self._decoder.buffer_updated(nbytes)

    def receive_eof(self) -> None:
        """Process the end of the stream: the peer will send no more bytes."""
        if self.is_ended:
            return
        self._lose(Step.END_OF_STREAM, "closed the connection unexpectedly")

    def next_event(self) -> Event | None:
        """Return the next event, or None.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            VersionMismatchError: the two have no common version; the message is for both users.
            RemoteError: the peer refused the connection and gave a reason.
        """
        try:
            while not self.is_ended and (item := self._decoder.next_event()) is not None:
                event = self._refuse(item) if isinstance(item, UnknownOp) else self._take(item)
                if event is not None:
                    return event
        except ProtocolError as error:
            if not self.is_ended:
                self._break(error)
            raise
        return self._events.popleft() if self._events else None

    # --- time

    def tick(self, now: float) -> float | None:
        """Do what is due: send a heartbeat, or give up the peer.

        Call it once after `Opened`, and then at the time that it returned.

        Returns:
            The time of the next call; None: no further call is needed.
        """
        if self.is_ended:
            return None
        late = now - self._wake
        if late > _LATE_S:
            self._heard = min(now, self._heard + late)  # we slept: the peer was not silent
        self._now = now
        if self.state is not State.OPEN:
            if now >= self._due:
                self._lose(Step.SILENCE, "did not finish the handshake in time")
        elif self.purpose == "control":
            if now >= self._heard + LOST_AFTER_S:  # the same sum as below: equal rounding
                self._lose(Step.SILENCE, f"has not been heard for {now - self._heard:.1f} seconds")
            elif now >= self._due:
                self._beat(now)
        else:
            return None
        if self.is_ended:
            return None
        self._wake = self._due
        if self.state is State.OPEN:
            self._wake = min(self._due, self._heard + LOST_AFTER_S)
        return self._wake

    def _beat(self, now: float) -> None:
        number = self._next_id()
        if len(self._beats) >= _MAX_BEATS:  # the peer reads but never answers
            self._beats.clear()
        self._beats[number] = now
        self._due = now + HEARTBEAT_INTERVAL_S
        self._write(Ping(id=number))

    def _lose(self, step: Step, what: str) -> None:
        self._step(step)
        if self.state is State.CLOSED:
            self._events.append(Closed("We said goodbye."))
        else:
            self._events.append(Lost(f"{self._peer_name} {what}."))

    # --- messages that arrive

    def _take(self, frame: Frame) -> Event | None:
        message = frame.message
        match message:
            case Hello() if self.side is Side.LISTENER:
                return self._welcome(message)
            case Welcome() if self.side is Side.DIALLER:
                return self._open_as_dialler(message)
            case Goodbye():
                self._step(Step.RECEIVE_GOODBYE)
                return Closed(message.reason)
            case Error() if self.state in (State.SAID_HELLO, State.AWAITING_HELLO):
                self._step(Step.BREAK)
                raise self._refusal(message)
            case _:
                self._step(Step.RECEIVE)
        if message.re is not None:
            return self._answer(message.re, message)
        if isinstance(message, Ping):
            if message.id is not None and self.state is State.OPEN:
                self._write(Pong(re=message.id))
            return None
        return Received(message, frame.payload)

    def _answer(self, number: int, message: Message) -> Event | None:
        if isinstance(message, Pong) and (sent := self._beats.pop(number, None)) is not None:
            self._measure(self._now - sent)
            return None
        asked = self._requests.pop(number, None)
        if asked is None:
            if 0 < number <= self._last_id:
                return None  # an answer that came too late: no caller waits for it
            raise RemoteProtocolError("The peer answered a request that was never made.")
        if not isinstance(message, (ANSWERS[asked], Error)):
            was = op_of(asked)
            raise RemoteProtocolError(f"The peer answered `{was}` with `{op_of(message)}`.")
        return Answered(number, message)

    def _measure(self, rtt: float) -> None:
        self._last_rtts.append(rtt)
        # Smoothed as TCP's round-trip time, RFC 6298 section 2.3.
        self.rtt_s = rtt if self.rtt_s is None else self.rtt_s + (rtt - self.rtt_s) / 8

    def _refuse(self, unknown: UnknownOp) -> None:
        """Answer that the operation is unknown; during the handshake, fail instead."""
        if self.state in (State.AWAITING_HELLO, State.SAID_HELLO):
            raise RemoteProtocolError(
                f"The peer sent `{unknown.op}` before the handshake was over."
            )
        if self.state is State.OPEN:
            self._write(
                Error(
                    re=unknown.id,
                    kind="unknown_op",
                    message=f"`{unknown.op}` is not known on this connection.",
                    data={"op": unknown.op},
                )
            )

    # --- the handshake

    def _welcome(self, hello: Hello) -> Opened:
        self._step(Step.RECEIVE_HELLO)
        self._check_identity(hello.node)
        version = common_version(self.me, self._versions, hello.node, hello.versions)
        self.purpose = hello.purpose
        self._write(Welcome(version=version, node=self.me))
        return self._open(hello.node, version)

    def _open_as_dialler(self, welcome: Welcome) -> Opened:
        self._step(Step.RECEIVE_WELCOME)
        self._check_identity(welcome.node)
        chosen = (welcome.version,)
        version = common_version(self.me, self._versions, welcome.node, chosen)
        return self._open(welcome.node, version)

    def _open(self, peer: NodeInfo, version: int) -> Opened:
        purpose = self.purpose
        assert purpose is not None
        self.peer, self.version = peer, version
        self._decoder.max_header = MAX_HEADER
        self._decoder.max_payload = MAX_PAYLOAD[purpose]
        self._decoder.known = known_from(self._peer_role, purpose)
        self._due = self._wake = self._now + HEARTBEAT_INTERVAL_S
        return Opened(peer, purpose, version)

    def _check_identity(self, node: NodeInfo) -> None:
        if self._peer_id is not None and node.node_id != self._peer_id:
            raise RemoteProtocolError(
                f"The peer calls itself {short(node.node_id)} and its certificate says"
                f" {short(self._peer_id)}."
            )

    def _refusal(self, error: Error) -> ProtocolError | RemoteError:
        """The error for a refused connection: VersionMismatchError or RemoteError, by its kind."""
        if error.kind == VersionMismatchError.code:
            mismatched = VersionMismatchError(error.message)
            mismatched.data = error.data  # the peer chose the keys
            return mismatched
        return RemoteError(error.message, kind=error.kind)

    # --- state

    def _step(self, step: Step) -> None:
        following = TRANSITIONS[self.state].get(step)
        if following is not None:
            self.state = following
        elif step.name.startswith("RECEIVE"):
            raise RemoteProtocolError(f"The peer sent a message out of turn: {self.state.value}.")
        else:
            raise LocalProtocolError(f"Nothing can be sent now: {self.state.value}.")

    def _break(self, error: ProtocolError) -> None:
        """Send the error to the peer as the last message."""
        self._step(Step.BREAK)
        self._write(Error(kind=error.code, message=str(error)[:MAX_TEXT], data=dict(error.data)))

    def _write(self, message: Message) -> None:
        self._out.extend(encode(message))

    def _next_id(self) -> int:
        self._last_id = self._last_id % _MAX_ID + 1
        return self._last_id

    @property
    def _peer_name(self) -> str:
        return self.peer.name if self.peer and self.peer.name else "The other computer"
