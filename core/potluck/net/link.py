"""One connection with a member of a home: messages, requests, heartbeats, back-pressure.

`wire/connection.py` decides what the protocol allows; this file adds the socket, the clock and the
tasks that wait.
"""

import asyncio
import logging
import ssl
from collections import deque
from contextlib import suppress

from potluck.errors import (
    LocalProtocolError,
    PeerLostError,
    PeerTimeoutError,
    PotluckError,
    RemoteError,
    UntrustedPeerError,
)
from potluck.ids import short
from potluck.net.identity import Identity, PeerIdentity
from potluck.net.limits import LINK_LIMITS, LinkLimits
from potluck.net.peer_link import PeerLink, fresh
from potluck.net.stream import Stream
from potluck.wire.connection import Answered, Closed, Connection, Event, Lost, Opened, Received
from potluck.wire.fields import MAX_TEXT
from potluck.wire.frame import Buffer
from potluck.wire.measuring_messages import Blob, BlobReceived
from potluck.wire.messages import Error, Message

logger = logging.getLogger(__name__)

_MESSAGE_COST = 1024  # bytes that a message without payload counts in the inbox


class Link(PeerLink):
    """An open connection. `dial` and `Listener` make it; its receiver must close it."""

    def __init__(
        self,
        stream: Stream,
        connection: Connection,
        identity: Identity,
        peer: PeerIdentity,
        *,
        limits: LinkLimits = LINK_LIMITS,
    ) -> None:
        """Use `dial` or `Listener`."""
        super().__init__(stream.remote, connection, identity, peer, limits)
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._inbox: deque[tuple[Message, memoryview]] = deque()
        self._inbox_bytes = 0
        self._is_reading = True
        self._arrival: asyncio.Future[None] | None = None
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._opened_at = 0.0  # in the event loop's time

    @property
    def rtt_s(self) -> float | None:
        """Round-trip time in seconds, smoothed over the heartbeats of a control connection."""
        return self._connection.rtt_s

    @property
    def least_rtt_s(self) -> float | None:
        """The shortest of the last round trips of a control connection; None: there are too few."""
        return self._connection.least_rtt_s

    def clock_ahead_s(self, now: float) -> float | None:
        """By how much the peer's clock is ahead of this Unix time; None: the peer did not say its time.

        It is as exact as the handshake was quick.
        """
        if self.peer.clock is None:
            return None
        return self.peer.clock + self._loop.time() - self._opened_at - now

    # --- sending

    def send_nowait(self, message: Message, payload: Buffer = b"") -> None:
        """Write a message at once. The caller may reuse the payload's memory when this returns.

        Raises:
            PeerLostError: the connection has ended.
        """
        self._check_open()
        self._connection.send(message, payload)
        self._flush()

    async def send(self, message: Message, payload: Buffer = b"") -> None:
        """Write a message, and wait while the peer reads more slowly than we write.

        Raises:
            PeerLostError: the connection has ended.
            PeerTimeoutError: the peer has stopped reading.
        """
        self.send_nowait(message, payload)
        await self._stream.drain(self._limits.stall_s)

    async def request(
        self, message: Message, *, timeout_s: float, payload: Buffer = b""
    ) -> Message:
        """Send a request, and wait for its answer.

        Raises:
            PeerTimeoutError: no answer came in time; the connection stays open.
            RemoteError: the peer answered with an error; `data["kind"]` is its kind.
            PeerLostError: the connection has ended.
        """
        self._check_open()
        number = self._connection.request(message, payload)
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._answers[number] = answer
        self._flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream.drain(self._limits.stall_s)
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
        """Return the next message that is not an answer; the payload belongs to the caller.

        There is no deadline, since a peer may have nothing to send. Set one where a message is due.

        Raises:
            PeerLostError: the connection has ended, and all messages from before were received.
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
        if not self._is_reading and self._inbox_bytes <= self._limits.inbox // 2:
            self._is_reading = True
            self._stream.resume_reading()
        return message, payload

    # --- the end

    def close(self, reason: str = "") -> None:
        """Say goodbye and end the connection; messages sent before are delivered first."""
        if self._error is None:
            with suppress(LocalProtocolError):
                self._connection.goodbye(reason[:MAX_TEXT])
                self._flush()
            self._end(PeerLostError("This connection was closed here."))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; after `close`, this takes bounded time."""
        await self._stream.wait_closed()

    def trust_changed(self) -> None:
        """End at once if the peer was revoked or its home was left. The identity calls this."""
        if self._error is None and not self._identity.trusts(self._peer):
            self._end(
                UntrustedPeerError("This computer was removed from the home.")
            )  # no goodbye: an untrusted peer gets no more messages
            self._stream.abort()

    # --- called by the stream

    @property
    def missing(self) -> int:
        return self._connection.missing

    def get_buffer(self) -> memoryview:
        return self._connection.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._connection.buffer_updated(nbytes, self._loop.time())
        self._handle_events()

    def stream_ended(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and not self._opened.done():
            # In TLS 1.3 the listener verifies our certificate after our handshake has finished.
            self._end(
                UntrustedPeerError("The other computer does not accept this one's certificate.")
            )
        self._connection.receive_eof()
        self._handle_events()
        if error is not None:
            logger.debug("connection broke peer=%s error=%r", short(self._peer.node_id), error)

    # --- private

    async def open(self) -> None:
        """Wait for the protocol's handshake. The caller sets the deadline."""
        self._stream.attach(self)
        self._flush()
        self._tick()
        await self._opened
        self._opened_at = self._loop.time()
        self._identity.watch(self)
        self.trust_changed()

    def _handle_events(self) -> None:
        """Handle all pending events of the connection. Never raises, since asyncio calls it."""
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
            case Answered(request, message):
                answer = self._answers.pop(request, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case Opened():
                if not self._opened.done():
                    self._opened.set_result(None)
                self._tick()  # after set_result: the end may have arrived with the opening
            case Closed(reason):
                self._end(PeerLostError(reason or "The other computer closed the connection."))
            case Lost(reason):
                self._end(PeerLostError(reason))

    def _receive(self, message: Message, payload: memoryview) -> None:
        self._inbox.append((message, payload))
        self._inbox_bytes += _MESSAGE_COST + payload.nbytes
        if self._is_reading and self._inbox_bytes > self._limits.inbox:
            self._is_reading = False
            self._stream.pause_reading()
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _tick(self) -> None:
        """Send heartbeats and notice missing ones; the connection says when to do it next."""
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
        """Write the connection's own answers; refuse a peer that asks but never reads."""
        data = self._connection.data_to_send()
        self._count_answers(len(data), is_read=self._stream.is_writable)
        if data:
            self._stream.write(data)

    def _check_open(self) -> None:
        if self._error is not None:
            raise fresh(self._error)

    def _end(self, error: PotluckError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # retrieved here: the opener may have been cancelled
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(fresh(error))
                answer.exception()
        self._wake_receiver()
        self._stream.close()


def error_message(error: PotluckError) -> Error:
    """Make the message that tells the peer of this error."""
    return Error(kind=error.code, message=error.message[:MAX_TEXT], data=dict(error.data))


def _unless_error(answer: Message) -> Message:
    if isinstance(answer, Error):
        error = RemoteError(answer.message)
        error.data = {**answer.data, "kind": answer.kind}  # the peer chose the keys of `data`
        raise error
    return answer
