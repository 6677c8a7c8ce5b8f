"""One connection with a member of a home: messages, requests, heartbeats, back-pressure.

What the protocol allows is decided by `wire/connection.py`; here are the socket's, the clock's and the
waiters' sides of it.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from potluck.errors import (
    LocalProtocolError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
    RemoteError,
    RemoteProtocolError,
    UntrustedPeerError,
)
from potluck.ids import HomeId, Role, short
from potluck.net.identity import Identity, PeerIdentity
from potluck.net.stream import Stream
from potluck.wire.connection import Answered, Closed, Connection, Event, Lost, Opened, Received
from potluck.wire.frame import Buffer
from potluck.wire.measuring_messages import Blob, BlobReceived
from potluck.wire.messages import (
    MAX_TEXT,
    Address,
    Error,
    Message,
    NodeInfo,
    Purpose,
)

logger = logging.getLogger(__name__)

Receiver: TypeAlias = Callable[[Message, memoryview], None]

INBOX_LIMIT = 16 << 20  # bytes that wait to be received before reading stops: a few chunks
_MESSAGE_COST = 1024  # what a message without payload counts there
MAX_UNREAD_ANSWERS = 1000  # a pong has 30 bytes; heartbeats alone take a quarter of an hour


class Link:
    """An open connection. Made by `dial` and by `Listener`; whoever gets it closes it.

    Attributes:
        peer: what the peer said of itself; its `node_id` is the one of its certificate.
        peer_role: its role in the home, from its certificate.
    """

    def __init__(
        self, stream: Stream, connection: Connection, identity: Identity, peer: PeerIdentity
    ) -> None:
        """Use `dial` or `Listener`."""
        self.home: HomeId = peer.home
        self.peer_role: Role = peer.role
        self.remote: Address = stream.remote
        self._identity = identity
        self._peer = peer
        self._stream = stream
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._inbox: deque[tuple[Message, memoryview]] = deque()
        self._inbox_bytes = 0
        self._is_reading = True
        self._arrival: asyncio.Future[None] | None = None
        self._receiver: Receiver | None = None
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._unread_answers = 0
        self._error: PotluckError | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- what it is

    @property
    def peer(self) -> NodeInfo:
        assert self._connection.peer is not None  # a link is handed out when it is open
        return self._connection.peer

    @property
    def purpose(self) -> Purpose:
        assert self._connection.purpose is not None
        return self._connection.purpose

    @property
    def rtt_s(self) -> float | None:
        """Round trip, smoothed over the heartbeats of a control connection."""
        return self._connection.rtt_s

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    # --- sending

    def send_nowait(self, message: Message, payload: Buffer = b"") -> None:
        """Write a message at once; its payload's memory is free again when this returns.

        Raises:
            PeerLostError: the connection has ended.
        """
        self._check_open()
        self._connection.send(message, payload)
        self._flush()

    async def send(self, message: Message, payload: Buffer = b"") -> None:
        """Write a message, and wait while the peer takes less than we write.

        Raises:
            PeerLostError: the connection has ended.
            PeerTimeoutError: the peer takes nothing any more.
        """
        self.send_nowait(message, payload)
        await self._stream.drain()

    async def request(
        self, message: Message, *, timeout_s: float, payload: Buffer = b""
    ) -> Message:
        """Ask, and wait for the answer.

        Raises:
            PeerTimeoutError: no answer came in time; the connection lives on.
            RemoteError: the peer answered with an error, whose kind is `data["kind"]`.
            PeerLostError: the connection has ended.
        """
        self._check_open()
        number = self._connection.request(message, payload)
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answers[number] = answer
        self._flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.drain()
                return _unless_error(await answer)
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"{self.peer.name} has not answered within {timeout_s:g} seconds."
            ) from error
        finally:
            self._answers.pop(number, None)
            self._connection.forget(number)
            answer.cancel()

    # --- receiving

    async def receive(self) -> tuple[Message, memoryview]:
        """The next message that is no answer; the payload belongs to the caller.

        There is no deadline, since a peer may have nothing to say: put one around it where an answer
        is due.

        Raises:
            PeerLostError: the connection has ended, and everything that came before was received.
        """
        while not self._inbox:
            if self._error is not None:
                raise fresh(self._error)
            assert self._arrival is None, "one task receives from a link"
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        message, payload = self._inbox.popleft()
        self._inbox_bytes -= _MESSAGE_COST + payload.nbytes
        if not self._is_reading and self._inbox_bytes <= INBOX_LIMIT // 2:
            self._is_reading = True
            self._stream.resume_reading()
        return message, payload

    def deliver_to(self, receiver: Receiver) -> None:
        """Call this with every message from now on, in the event loop, instead of `receive`.

        It saves a turn of the event loop per message, and with it the back-pressure: the receiver
        must take what comes.
        """
        self._receiver = receiver
        while self._inbox:
            message, payload = self._inbox.popleft()
            self._inbox_bytes -= _MESSAGE_COST + payload.nbytes
            receiver(message, payload)

    # --- the end

    def close(self, reason: str = "") -> None:
        """Say goodbye and end; what was sent is delivered first."""
        if self._error is None:
            with suppress(LocalProtocolError):
                self._connection.goodbye(reason[:MAX_TEXT])
                self._flush()
            self._end(PeerLostError("This connection was closed here."))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed too; bounded after `close`."""
        await self._stream.wait_closed()

    def trust_changed(self) -> None:
        """End at once when the peer was revoked or its home left. Called by the identity."""
        if self._error is None and not self._identity.trusts(self._peer):
            self._end(
                UntrustedPeerError("This computer was removed from the home.")
            )  # no goodbye: nothing more is said to who is not trusted
            self._stream.abort()

    # --- called by the stream

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.buffer_updated(nbytes, self._loop.time())
        self._handle_events()

    def stream_ended(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and not self._opened.done():
            # In TLS 1.3 the listener judges our certificate after our handshake is over.
            self._end(
                UntrustedPeerError("The other computer does not accept this one's certificate.")
            )
        self._connection.receive_eof()
        self._handle_events()
        if error is not None:
            logger.debug("connection broke peer=%s error=%r", short(self._peer.node_id), error)

    # --- inside

    async def open(self) -> None:
        """Wait for the handshake of the protocol. The caller sets the deadline."""
        self._stream.attach(self)
        self._flush()
        self._tick()
        await self._opened
        self._identity.watch(self)
        self.trust_changed()

    def _handle_events(self) -> None:
        """Take what the connection understood, to its end. Never raises: asyncio calls it."""
        try:
            while (event := self._connection.next_event()) is not None:
                self._handle(event)
            self._flush_answers()
        except PotluckError as error:
            self._flush()
            self._end(error)
        except Exception:
            logger.exception("a message could not be handled peer=%s", short(self._peer.node_id))
            self._end(LocalProtocolError("A message could not be handled here; see the log."))

    def _handle(self, event: Event) -> None:
        match event:
            case Received(Blob(id=int(request)), payload):
                self._connection.send(BlobReceived(re=request, nbytes=payload.nbytes))
            case Received(message, payload):
                self._receive(message, payload)
            case Answered(request, message, _):
                answer = self._answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Opened():
                if not self._opened.done():
                    self._opened.set_result(None)
                self._tick()  # after it: the end may have come with it
            case Closed(reason):
                self._end(PeerLostError(reason or "The other computer closed the connection."))
            case Lost(reason):
                self._end(PeerLostError(reason))

    def _receive(self, message: Message, payload: memoryview) -> None:
        if self._receiver is not None:
            self._receiver(message, payload)
            return
        self._inbox.append((message, payload))
        self._inbox_bytes += _MESSAGE_COST + payload.nbytes
        if self._is_reading and self._inbox_bytes > INBOX_LIMIT:
            self._is_reading = False
            self._stream.pause_reading()
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _tick(self) -> None:
        """Send heartbeats and notice their absence, as often as the connection wants."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        when = self._connection.tick(self._loop.time())
        if when is not None:
            self._timer = self._loop.call_at(when, self._tick)
        self._handle_events()

    def _flush(self) -> None:
        if data := self._connection.data_to_send():
            self._stream.write(data)

    def _flush_answers(self) -> None:
        """Write what the connection answers by itself, unless the peer only asks and never reads.

        (Not reading while it does not is no way: two nodes that send each other much would wait for
        each other for ever.)
        """
        data = self._connection.data_to_send()
        if self._stream.is_writable:
            self._unread_answers = 0
        else:
            self._unread_answers += len(data)
            if self._unread_answers > MAX_UNREAD_ANSWERS:
                raise RemoteProtocolError("The other computer asks and does not read the answers.")
        if data:
            self._stream.write(data)

    def _end(self, error: PotluckError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # whoever opened it may have been cancelled
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(fresh(error))
                answer.exception()
        self._wake_receiver()
        self._stream.close()

    def _check_open(self) -> None:
        if self._error is not None:
            raise fresh(self._error)


def error_message(error: PotluckError) -> Error:
    """The error as a message for the peer."""
    return Error(kind=error.code, message=error.message[:MAX_TEXT], data=dict(error.data))


def _unless_error(answer: Message) -> Message:
    if isinstance(answer, Error):
        error = RemoteError(answer.message)
        error.data = {**answer.data, "kind": answer.kind}  # the keys are the peer's choice
        raise error
    return answer


def fresh(error: PotluckError) -> PeerLostError:
    """The end of the connection as its own exception for each who meets it."""
    lost = PeerLostError(error.message)
    lost.data = error.data
    lost.__cause__ = error
    return lost
