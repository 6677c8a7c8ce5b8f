"""One connection between two nodes, without I/O: bytes and the time in, events and bytes out.

The rules of the protocol that concern a connection as a whole live here and nowhere else:

1. The dialler says `hello`, the listener answers `welcome` with the version both speak, or an error
   that says why not. Nothing else is understood before that, and only small headers are read.
2. A request has an `id`; its answer has it under `re`, and is of the kind that answers it or `error`.
3. What a connection does not know is answered `error(kind="unknown_op")`, and the connection lives.
4. Heartbeats go both ways on control connections. Three missed are a lost peer, one is not.
5. `goodbye` tells leaving from being lost.

The shell around it (`net/link.py`) owns the socket and the clock.
"""

from collections import deque
from collections.abc import Collection, Sequence
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
    MAX_TEXT,
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
from potluck.wire.operations import ANSWERS, BY_PURPOSE, HANDSHAKE, known_from, op_of
from potluck.wire.versions import PROTOCOL_VERSIONS, common_version

HEARTBEAT_INTERVAL_S: Final = 0.9  # three, and time to act, within the three seconds promised
LOST_AFTER_S: Final = 3 * HEARTBEAT_INTERVAL_S + 0.1  # the third may be that late
OPENING_TIMEOUT_S: Final = 5.0  # a hello is one round trip; a computer under load takes a second
_LATE_S: Final = HEARTBEAT_INTERVAL_S / 2  # a tick that late means that we slept, not the peer
_MAX_ID: Final = (1 << 31) - 1
_MAX_BEATS: Final = 16  # more than can be under way before the peer is lost


class Connection:
    """Both sides of one connection; `side` says which.

    Obligations of the shell:
    - After every call but `get_buffer` and `forget`: write what `data_to_send` returns, in order.
    - After `receive_data`, `buffer_updated`, `receive_eof` and `tick`: call `next_event` until None.
    - Stop reading while the socket takes no more bytes: answers to a flood must not pile up here.
    - Call `tick` when it said so. A ProtocolError or RemoteError from `next_event` ends the
      connection: write what is left to send, then close.

    Args:
        purpose: what the dialler wants of the connection; None on the listener, which is told.
        accepts: the purposes a listener serves.
        peer_id: the node id of the certificate that TLS saw; the peer must call itself so.
        peer_role: its role in the home, from the same certificate; None where both roles are one.
        heartbeats: None: on control connections alone.
    """

    def __init__(
        self,
        side: Side,
        me: NodeInfo,
        *,
        now: float,
        purpose: Purpose | None = None,
        accepts: Collection[Purpose] = tuple(BY_PURPOSE),
        peer_id: str | None = None,
        peer_role: Role | None = None,
        versions: Sequence[int] = PROTOCOL_VERSIONS,
        heartbeats: bool | None = None,
    ) -> None:
        assert (purpose is None) == (side is Side.LISTENER)
        self.side = side
        self.me = me
        self.peer: NodeInfo | None = None
        self.purpose: Purpose | None = purpose
        self.version: int | None = None
        self.rtt_s: float | None = None  # smoothed over heartbeats
        self.state = State.QUIET if side is Side.DIALLER else State.AWAITING_HELLO
        self._accepts = accepts
        self._peer_id = peer_id
        self._peer_role: Role | None = peer_role
        self._versions = tuple(versions)
        self._heartbeats = heartbeats
        self._decoder = FrameDecoder(
            MAX_PAYLOAD["handshake"], max_header=MAX_HANDSHAKE, known=HANDSHAKE
        )
        self._out: list[Buffer] = []
        self._events: deque[Event] = deque()
        self._last_id = 0
        self._requests: dict[int, type[Message]] = {}
        self._beats: dict[int, float] = {}  # our pings under way: id -> when
        self._heard = now
        self._now = now
        self._due = self._wake = now + OPENING_TIMEOUT_S

    @property
    def is_ended(self) -> bool:
        """Whether nothing more can come of this connection."""
        return self.state in ENDED

    # --- sending

    def start(self) -> None:
        """Say hello; the dialler alone, once."""
        self._step(Step.SEND_HELLO)
        assert self.purpose is not None
        self._write(Hello(versions=self._versions, purpose=self.purpose, node=self.me))

    def send(self, message: Message, payload: Buffer = b"") -> None:
        """Send a message that needs no answer, or is one (`re`). The payload is not copied.

        Raises:
            LocalProtocolError: the connection is not open, or the message is not for it.
        """
        if self.state is not State.OPEN:
            self._step(Step.SEND)
        self._out.extend(encode(message, payload))

    def request(self, message: Message, payload: Buffer = b"") -> int:
        """Send a message that is answered; returns the number that `Answered` will carry."""
        if type(message) not in ANSWERS:
            raise LocalProtocolError(f"Nothing answers `{op_of(message)}`.")
        number = self._next_id()
        self.send(msgspec.structs.replace(message, id=number), payload)
        self._requests[number] = type(message)
        return number

    def forget(self, request: int) -> None:
        """Wait for this answer no longer; should it come, it is dropped."""
        self._requests.pop(request, None)

    def goodbye(self, reason: str = "") -> None:
        """Leave. Nothing can be sent after it; without effect when the connection has ended."""
        if self.state in (State.LEAVING, *ENDED):
            return
        self._step(Step.SEND_GOODBYE)
        self._write(Goodbye(reason=reason))

    def data_to_send(self) -> list[Buffer]:
        """What has to be written now, in order; each buffer is handed out once."""
        out, self._out = self._out, []
        return [buffer for buffer in out if len(buffer)]

    # --- receiving

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        """Where the socket may put the next bytes; payloads are received into their own memory."""
        return self._decoder.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int, now: float) -> None:
        """That many bytes were put into the buffer."""
        self._now = self._heard = now
        if not self.is_ended:
            self._decoder.buffer_updated(nbytes)

    def receive_data(self, data: Buffer, now: float) -> None:
        """Take bytes that are elsewhere already."""
        self._now = self._heard = now
        if not self.is_ended:
            self._decoder.feed(data)

    def receive_eof(self) -> None:
        """The peer will send nothing more."""
        if self.is_ended:
            return
        self._step(Step.END_OF_STREAM)
        if self.state is State.CLOSED:
            self._events.append(Closed("We said goodbye."))
        else:
            self._events.append(Lost(f"{self._peer_name} closed the connection unexpectedly."))

    def next_event(self) -> Event | None:
        """The next thing that happened, or None.

        Raises:
            RemoteProtocolError: the peer broke the protocol.
            VersionMismatchError: the two speak no common version; a sentence for both users.
            RemoteError: the peer refused the connection and said why.
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
        """Do what is due: send a heartbeat, or give the peer up.

        Call it once after `Opened`, and then when it said so.

        Returns:
            When to call it again; None: never, nothing is due any more.
        """
        if self.is_ended:
            return None
        late = now - self._wake
        if late > _LATE_S:
            self._heard = min(now, self._heard + late)  # we slept: not the peer's silence
        self._now = now
        if self.state is not State.OPEN:
            if now >= self._due:
                self._give_up("did not finish the handshake in time")
        elif self._heartbeats:
            if now >= self._heard + LOST_AFTER_S:  # the same sum that was asked for below
                self._give_up(f"has not been heard for {now - self._heard:.1f} seconds")
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

    def _give_up(self, what: str) -> None:
        self._step(Step.SILENCE)
        if self.state is State.CLOSED:
            self._events.append(Closed("We said goodbye."))
        else:
            self._events.append(Lost(f"{self._peer_name} {what}."))

    # --- what arrives

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
            return self._answer(message.re, frame)
        if isinstance(message, Ping):
            if message.id is not None and self.state is State.OPEN:
                self._write(Pong(re=message.id))
            return None
        return Received(message, frame.payload)

    def _answer(self, number: int, frame: Frame) -> Event | None:
        message = frame.message
        if isinstance(message, Pong) and (sent := self._beats.pop(number, None)) is not None:
            self._measure(self._now - sent)
            return None
        asked = self._requests.pop(number, None)
        if asked is None:
            if 0 < number <= self._last_id:
                return None  # an answer that came too late: nobody waits for it
            raise RemoteProtocolError("The peer answered a request that was never made.")
        if not isinstance(message, (ANSWERS[asked], Error)):
            was = op_of(asked)
            raise RemoteProtocolError(f"The peer answered `{was}` with `{op_of(message)}`.")
        return Answered(number, message, frame.payload)

    def _measure(self, rtt: float) -> None:
        # The smoothing of TCP's round trip, RFC 6298 section 2.3.
        self.rtt_s = rtt if self.rtt_s is None else self.rtt_s + (rtt - self.rtt_s) / 8

    def _refuse(self, unknown: UnknownOp) -> None:
        """Say that we do not know the operation, unless the peer must not speak at all yet."""
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
        if hello.purpose not in self._accepts:
            raise RemoteProtocolError(f"`{hello.purpose}` connections are not served here.")
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
        if self._heartbeats is None:
            self._heartbeats = self.purpose == "control"
        self._due = self._wake = self._now + HEARTBEAT_INTERVAL_S
        return Opened(peer, purpose, version)

    def _check_identity(self, node: NodeInfo) -> None:
        if self._peer_id is not None and node.node_id != self._peer_id:
            raise RemoteProtocolError(
                f"The peer calls itself {short(node.node_id)} and its certificate says"
                f" {short(self._peer_id)}."
            )

    def _refusal(self, error: Error) -> ProtocolError | RemoteError:
        """Why the listener did not welcome us, in our words where we know better."""
        if error.kind == VersionMismatchError.code:
            mismatched = VersionMismatchError(error.message)
            mismatched.data = error.data  # its keys are the peer's choice
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
        """Tell the peer why, as the last thing it hears."""
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
