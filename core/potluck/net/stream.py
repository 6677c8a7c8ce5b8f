"""A TLS byte stream of asyncio: flow control and its end, no messages.

Bytes go from OpenSSL straight into the buffer that the sink gives (for a payload its own memory), and
what is written is encrypted at once, so that the writer's buffers are free when `write` returns.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from typing import Protocol, cast

from potluck.errors import PeerLostError, PeerTimeoutError
from potluck.wire.frame import Buffer
from potluck.wire.messages import Address

STALL_TIMEOUT_S = 60.0  # the largest frame, 64 MiB, takes that long on 9 Mbit/s
CLOSE_TIMEOUT_S = 2.0  # for what is still to be sent and the peer's close_notify
_KEEP_ALIVE = {  # systems have some of them: after 15 s of silence, gone within another 15
    "TCP_KEEPIDLE": 15,  # s
    "TCP_KEEPALIVE": 15,  # s; macOS's name of the same
    "TCP_KEEPINTVL": 5,  # s
    "TCP_KEEPCNT": 3,
}


class Sink(Protocol):
    """What takes the bytes of a stream."""

    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def stream_ended(self, error: Exception | None) -> None:
        """Called once, when no bytes will come any more."""
        ...


class Stream(asyncio.BufferedProtocol):
    """One connection after its TLS handshake. It does not read until a sink is attached."""

    def __init__(self) -> None:
        self._sink: Sink | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False  # the sink was told
        self._error: Exception | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def connect(cls, address: Address, context: ssl.SSLContext, name: str) -> "Stream":
        """Dial an address, and authenticate it by its name. The caller sets the deadline.

        Raises:
            OSError: nobody answers there; `ssl.SSLError` if it is somebody else.
        """
        _, stream = await asyncio.get_running_loop().create_connection(
            cls,
            address.host,
            address.port,
            ssl=context,
            server_hostname=name,
            ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
        )
        return stream

    @classmethod
    async def accept(cls, accepted: socket.socket, context: ssl.SSLContext) -> "Stream":
        """Serve a connection that somebody made. The caller sets the deadline.

        Raises:
            OSError: it ended; `ssl.SSLError` if it speaks no TLS of ours.
        """
        _, stream = await asyncio.get_running_loop().connect_accepted_socket(
            cls, accepted, ssl=context, ssl_shutdown_timeout=CLOSE_TIMEOUT_S
        )
        return stream

    @property
    def tls(self) -> ssl.SSLObject:
        return self._open_transport.get_extra_info("ssl_object")

    @property
    def remote(self) -> Address:
        return address_of(self._open_transport.get_extra_info("peername"))

    @property
    def is_closing(self) -> bool:
        return self._over or self._open_transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the peer takes what we write; else it piles up here."""
        return self._writable.is_set()

    def attach(self, sink: Sink) -> None:
        """Give what arrives to the sink from now on."""
        self._sink = sink
        if self._over:
            sink.stream_ended(self._error)
        else:
            self._open_transport.resume_reading()

    def pause_reading(self) -> None:
        """Let the peer wait: TCP's window closes when our buffers are full."""
        if not self.is_closing:
            self._open_transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if not self.is_closing:
            self._open_transport.resume_reading()

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Write in one go; nothing happens when the stream has ended."""
        if not self.is_closing:
            self._open_transport.writelines([octets(b) for b in buffers if len(b)])

    async def drain(self) -> None:
        """Wait until the peer has taken enough for more to be written.

        Raises:
            PeerTimeoutError: it takes nothing any more.
            PeerLostError: it is gone.
        """
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    await self._writable.wait()
            except TimeoutError as error:
                self.abort()
                raise PeerTimeoutError(
                    f"The other computer has taken nothing for {STALL_TIMEOUT_S:.0f} seconds."
                ) from error
        if self._over:
            raise PeerLostError("The connection to the other computer has ended.")

    def close(self) -> None:
        """Send what is written, then end."""
        self._open_transport.close()

    def abort(self) -> None:
        """End at once."""
        self._open_transport.abort()

    async def wait_closed(self) -> None:
        """Wait for the end; it comes in bounded time after `close` or `abort`."""
        await self._closed.wait()

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.pause_reading()
        keep_alive(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._sink is not None
        return self._sink.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        assert self._sink is not None
        self._sink.buffer_updated(nbytes)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _end(self, error: Exception | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        self._writable.set()
        if self._sink is not None:
            self._sink.stream_ended(error)

    @property
    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None  # a stream is handed out after connection_made
        return self._transport


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel end a connection whose other side vanished without a word.

    Control connections have heartbeats, which are faster; the others may be silent for hours.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def octets(buffer: Buffer) -> Buffer:
    """The buffer with its bytes as items: asyncio counts in `len`, which of numbers is not that."""
    if isinstance(buffer, memoryview) and buffer.itemsize != 1:
        return buffer.cast("B")
    return buffer


def address_of(name: object) -> Address:
    """An address from what `getpeername` returns, with the scope of a link-local one."""
    host, port, *more = cast("tuple[str, int]", name)
    scope = more[1] if len(more) > 1 else 0
    if scope and "%" not in host:
        host = f"{host}%{scope}"
    return Address(host=host.removeprefix("::ffff:"), port=port)
