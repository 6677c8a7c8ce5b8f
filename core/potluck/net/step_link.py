"""One activation connection, for the threads that compute or drive.

`Link` serves all other connections, in an event loop. A token has no time for one: here a message is
decoded by the thread that received it, and sent by the thread that made it. A token's way to a stage and
back takes 95 µs so, and 183 µs over a `Link`; 456 µs and 650 µs when weights have just gone through the
processor's caches (`tests/bench_transport.py`, loopback, two cores of a Xeon, medians).
`wire/connection.py` decides what the protocol allows, in both. Thread-safe; a `Reactor` reads it.
"""

import asyncio
import logging
import ssl
import threading
import time
from contextlib import suppress

from potluck.errors import (
    LocalProtocolError,
    PeerLostError,
    PotluckError,
    UntrustedPeerError,
)
from potluck.ids import short
from potluck.net.identity import Identity, PeerIdentity
from potluck.net.limits import LINK_LIMITS, LinkLimits
from potluck.net.peer_link import PeerLink, fresh
from potluck.net.reactor import Delivery, OnMessage, Reactor
from potluck.net.secure_socket import SecureSocket
from potluck.wire.connection import Connection
from potluck.wire.events import Closed, Lost, Opened, Received
from potluck.wire.fields import MAX_TEXT
from potluck.wire.frame import Buffer
from potluck.wire.messages import Message

logger = logging.getLogger(__name__)

_VANISHED = "The other computer closed the connection unexpectedly."


class StepLink(PeerLink):
    """An open connection. Made by `dial_steps` and by `Listener`; whoever gets it closes it."""

    def __init__(
        self,
        reactor: Reactor,
        stream: SecureSocket,
        connection: Connection,
        identity: Identity,
        peer: PeerIdentity,
        *,
        limits: LinkLimits = LINK_LIMITS,
    ) -> None:
        """Use `dial_steps` or `Listener`."""
        super().__init__(stream.remote, connection, identity, peer, limits)
        self._reactor = reactor
        self._is_served = False  # by the reactor, which then closes the socket
        self._stream = stream
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()

    # --- what it is

    @property
    def is_revoked(self) -> bool:
        """Whether it ended because the peer was removed from the home. Its messages are not handled then."""
        return isinstance(self._error, UntrustedPeerError)

    @property
    def error(self) -> PeerLostError | None:
        """Why the connection ended; None while it is open."""
        return None if self._error is None else fresh(self._error)

    @property
    def has_backlog(self) -> bool:
        """Whether `send_backlog` is due as soon as the socket can be written."""
        return self._stream.backlog_bytes > 0

    def fileno(self) -> int:
        return self._stream.fileno()

    # --- sending

    def send_nowait(self, message: Message, payload: Buffer = b"") -> None:
        """Write a message at once; its payload's memory is free again when this returns.

        What the kernel does not take now, the reactor writes once `deliver_to` was called.

        Raises:
            PeerLostError: the connection has ended.
        """
        with self._lock:
            if self._error is not None:
                raise fresh(self._error)
            self._connection.send(message, payload)
            self._flush()
            if self._error is not None:
                raise fresh(self._error)
            has_backlog = self.has_backlog
        if has_backlog:
            self._reactor.wake()

    def send_backlog(self) -> None:
        """Write what the socket did not take before."""
        with self._lock:
            if self._error is not None:
                return
            try:
                self._stream.send_backlog()
            except OSError as error:
                self._break(error)

    def _flush(self) -> None:
        try:
            self._stream.write(self._connection.data_to_send())
        except OSError as error:
            self._break(error)
        self._check_backlog()

    def _check_backlog(self) -> None:
        stalled_s = time.monotonic() - self._stream.taken_at if self.has_backlog else 0.0
        if self._stream.backlog_bytes > self._limits.backlog or stalled_s > self._limits.stall_s:
            self._end(PeerLostError(f"{self.peer.name} takes nothing of what is sent to it."))

    # --- receiving

    def deliver_to(self, receiver: OnMessage) -> None:
        """Have the reactor call this with every message, until the connection ends."""
        with self._lock:
            if self._error is None:
                self._is_served = True
                self._reactor.add(self, receiver)

    def read(self) -> list[Delivery]:
        """The messages that have arrived since the last call. `is_closed` says whether the connection ended."""
        steps: list[Delivery] = []
        with self._lock:
            if self._error is not None:
                return steps
            try:
                self._stream.fill()
                while self._understand(steps) and self._decrypt(steps):
                    pass
                self._answer()
            except OSError as error:
                self._break(error)
            except PotluckError as error:
                self._flush()
                self._end(error)
            except Exception:  # the boundary: one link's bytes must not end the thread of all
                logger.exception("a step could not be read peer=%s", short(self._peer.node_id))
                self._end(LocalProtocolError("A message could not be read here; see the log."))
        return steps

    def _understand(self, steps: list[Delivery]) -> bool:
        """Collect the messages in the bytes that the connection has; False: it has ended."""
        while (event := self._connection.next_event()) is not None:
            match event:
                case Received(message, payload):
                    steps.append((message, payload))
                case Closed(reason) | Lost(reason):
                    self._end(PeerLostError(reason or "The other computer closed the connection."))
                    return False
                case _:  # nothing is asked here, and it was opened before
                    pass
        return True

    def _decrypt(self, steps: list[Delivery]) -> bool:
        """Give the connection more bytes; False: there are none now."""
        count = self._stream.read_into(self._connection.get_buffer())
        if count:
            self._connection.buffer_updated(count, time.monotonic())
        elif count == 0:
            self._connection.receive_eof()
            self._understand(steps)
            self._end(PeerLostError(_VANISHED))
        return bool(count)

    def _answer(self) -> None:
        """Write what the connection answers by itself.

        Raises:
            RemoteProtocolError: the peer asks and never reads the answers.
        """
        data = self._connection.data_to_send()
        if data or self._unread_answers:  # nearly never
            self._count_answers(len(data), is_read=not self.has_backlog)
        self._stream.write(data)  # and with it what TLS answers by itself
        self._check_backlog()

    async def receive(self) -> list[Delivery]:
        """Wait for messages, in the event loop, as long as nothing else reads this link.

        The caller sets the deadline.

        Raises:
            PeerLostError: the connection has ended.
        """
        while not (messages := self.read()):
            if self._error is not None:
                raise fresh(self._error)
            try:
                await self._stream.receive()
            except OSError as error:
                self._break(error)
        return messages

    # --- the end

    def close(self, reason: str = "") -> None:
        """Say goodbye and end. What the kernel has not taken yet is lost."""
        with self._lock:
            if self._error is None:
                with suppress(LocalProtocolError):
                    self._connection.goodbye(reason[:MAX_TEXT])
                    self._flush()
                self._end(PeerLostError("This connection was closed here."))

    def release(self) -> None:
        """Close the socket of a connection that has ended. The reactor's to call."""
        with self._lock:
            self._close_stream()

    def _close_stream(self) -> None:
        if self.is_revoked:
            self._stream.abort()  # nothing more is said to who is not trusted
        else:
            self._stream.close()

    async def wait_closed(self) -> None:
        """Wait for the end; why it came is `error`."""
        await self._ended.wait()

    def trust_changed(self) -> None:
        """End at once when the peer was revoked or its home left. Called by the identity."""
        if self._error is None and not self._identity.trusts(self._peer):
            with self._lock:
                self._end(UntrustedPeerError("This computer was removed from the home."))

    def _break(self, error: OSError) -> None:
        if self._error is None:
            logger.debug("connection broke peer=%s error=%r", short(self._peer.node_id), error)
            self._connection.receive_eof()
            event = self._connection.next_event()
            reason = event.reason if isinstance(event, Lost | Closed) else _VANISHED
            self._end(PeerLostError(reason))

    def _end(self, error: PotluckError) -> None:
        if self._error is not None:
            return
        self._error = error
        try:
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:  # the loop is over, and nobody waits
            logger.debug("a connection ended after its loop")
        if self._is_served:
            self._reactor.wake()  # who waits on the socket closes it
        else:
            self._close_stream()

    # --- the beginning, in the event loop

    async def open(self) -> None:
        """Wait for the handshake of the protocol. The caller sets the deadline."""
        self._stream.write(self._connection.data_to_send())
        try:
            while not self._is_opened():
                await self._stream.flush()
                await self._stream.receive()
            await self._stream.flush()
        except ssl.SSLError as error:
            # In TLS 1.3 the listener judges our certificate after our handshake is over.
            raise UntrustedPeerError(
                "The other computer does not accept this one's certificate."
            ) from error
        except OSError as error:
            raise PeerLostError(_VANISHED) from error
        self._identity.watch(self)
        self.trust_changed()

    def _is_opened(self) -> bool:
        """Handle what has arrived, up to the last message of the handshake; whether that is here."""
        connection = self._connection
        while (count := self._stream.read_into(connection.get_buffer())) is not None:
            if not count:
                raise ConnectionResetError("the connection ended")
            connection.buffer_updated(count, self._loop.time())
            try:
                event = connection.next_event()
            finally:  # also what it answers to what it refuses
                self._stream.write(connection.data_to_send())
            match event:
                case Opened():
                    return True
                case Closed(reason) | Lost(reason):
                    raise PeerLostError(reason or "The other computer closed the connection.")
                case _:
                    pass
        return False
