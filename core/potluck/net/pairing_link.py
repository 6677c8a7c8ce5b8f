"""A connection with a computer that is not in our home yet. It carries only pairing messages."""

import asyncio
from collections import deque

from potluck.errors import LocalProtocolError, PairingError, PeerTimeoutError, PotluckError
from potluck.net.stream import Stream
from potluck.wire.codec import UnknownOp
from potluck.wire.frame import FrameDecoder, encode
from potluck.wire.messages import Address, Message
from potluck.wire.pairing_messages import MAX_PAIRING_HEADER, PAIRING

_MAX_WAITING = 4  # pairing messages alternate; no honest peer sends more at once


class PairingLink:
    """Carries pairing messages both ways. Its receiver must close it.

    Attributes:
        peer_certificate: DER, from the TLS handshake. It is None on the side that was dialled: TLS
            does not ask the dialler for a certificate. The dialler sends it in a pairing message,
            and proves its key there.
    """

    def __init__(self, stream: Stream, peer_certificate: bytes | None) -> None:
        """Use `dial_pairing` or `Listener`."""
        self.peer_certificate = peer_certificate
        self.remote: Address = stream.remote
        self._stream = stream
        self._decoder = FrameDecoder(0, max_header=MAX_PAIRING_HEADER, known=PAIRING)
        self._inbox: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._error: PotluckError | None = None
        stream.attach(self)

    async def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            PairingError: the connection has ended.
        """
        if self._error is not None:
            raise PairingError(self._error.message)
        self._stream.write(encode(message))

    async def receive(self, timeout_s: float) -> Message:
        """Return the next message.

        Raises:
            PeerTimeoutError: no message came in time.
            PairingError: the connection has ended, or the peer sent something else.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError as error:
            raise PeerTimeoutError(
                f"The other computer has not answered within {timeout_s:g} seconds."
            ) from error
        if not self._inbox:
            assert self._error is not None
            raise PairingError(self._error.message) from self._error
        message = self._inbox.popleft()
        if not self._inbox and self._error is None:
            self._arrived.clear()
        return message

    async def wait_first(self) -> None:
        """Wait until a message can be received. The caller sets the deadline.

        Raises:
            PairingError: the connection ended without a message.
        """
        await self._arrived.wait()
        if not self._inbox:
            raise PairingError("The other computer did not say anything.")

    def close(self) -> None:
        """End the connection; messages sent before are delivered first."""
        self._end(LocalProtocolError("The pairing was ended here."))

    async def wait_closed(self) -> None:
        """Wait until the socket is closed; after `close`, this takes bounded time."""
        await self._stream.wait_closed()

    # --- called by the stream

    @property
    def missing(self) -> int:
        return self._decoder.missing

    def get_buffer(self) -> memoryview:
        return self._decoder.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._error is not None:
            return
        self._decoder.buffer_updated(nbytes)
        try:
            while (event := self._decoder.next_event()) is not None:
                if isinstance(event, UnknownOp) or len(self._inbox) >= _MAX_WAITING:
                    raise PairingError("The other computer sent something that is no pairing.")
                self._inbox.append(event.message)
                self._arrived.set()
        except PotluckError as error:
            self._end(error)
            self._stream.abort()  # nothing is owed to who sends something else

    def stream_ended(self, error: Exception | None) -> None:
        self._end(PairingError("The other computer ended the pairing."))

    def _end(self, error: PotluckError) -> None:
        if self._error is None:
            self._error = error
            self._arrived.set()
            self._stream.close()
