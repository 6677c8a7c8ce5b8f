"""A TLS byte stream over asyncio: bytes, flow control and the end, but no messages.

OpenSSL decrypts straight into the buffer that the sink gives (for a payload, its own memory).
Written bytes are encrypted at once, so the writer may reuse its buffers when `write` returns.
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from typing import Protocol, cast

from potluck.errors import PeerLostError, PeerTimeoutError
from potluck.wire.frame import Buffer
from potluck.wire.messages import Address

CLOSE_TIMEOUT_S = 2.0  # for unsent bytes and the peer's close_notify
_KEEP_ALIVE = {  # after 15 s of silence, lost within another 15 s; systems have some of these
    "TCP_KEEPIDLE": 15,  # s
    "TCP_KEEPALIVE": 15,  # s; macOS's name for TCP_KEEPIDLE
    "TCP_KEEPINTVL": 5,  # s
    "TCP_KEEPCNT": 3,
}


class Sink(Protocol):
    """Receives the bytes of a stream."""

    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def stream_ended(self, error: Exception | None) -> None:
        """Called once, after the last byte."""
        ...


class Stream(asyncio.BufferedProtocol):
    """One connection after its TLS handshake. It reads only once a sink is attached."""

    def __init__(self) -> None:
        self._sink: Sink | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False  # `stream_ended` was called
        self._error: Exception | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def connect(cls, address: Address, context: ssl.SSLContext, name: str) -> "Stream":
        """Dial an address, and check its certificate's name. The caller sets the deadline.

        Raises:
            OSError: nobody answers there; `ssl.SSLError` if another node answers.
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
        """Do the TLS handshake of an accepted connection. The caller sets the deadline.

        Raises:
            OSError: the connection ended; `ssl.SSLError` if the TLS handshake fails.
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
        """Whether the peer reads what we write; if not, written bytes queue up here."""
        return self._writable.is_set()

    def attach(self, sink: Sink) -> None:
        """From now on, pass received bytes to the sink."""
        self._sink = sink
        if self._over:
            sink.stream_ended(self._error)
        else:
            self._open_transport.resume_reading()

    def pause_reading(self) -> None:
        """Stop reading. The peer must wait once our buffers are full and TCP's window closes."""
        if not self.is_closing:
            self._open_transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        if not self.is_closing:
            self._open_transport.resume_reading()

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Write these buffers together; without effect if the stream has ended."""
        if not self.is_closing:
            self._open_transport.writelines([octets(b) for b in buffers if len(b)])

    async def drain(self, timeout_s: float) -> None:
        """Wait until the peer has read enough that more can be written.

        Raises:
            PeerTimeoutError: the peer has stopped reading.
            PeerLostError: the peer is gone.
        """
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._writable.wait()
            except TimeoutError as error:
                self.abort()
                raise PeerTimeoutError(
                    f"The other computer has taken nothing for {timeout_s:g} seconds."
                ) from error
        if self._over:
            raise PeerLostError("The connection to the other computer has ended.")

    def close(self) -> None:
        """Send the bytes written before, then end."""
        self._open_transport.close()

    def abort(self) -> None:
        """End at once."""
        self._open_transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the stream has ended; after `close` or `abort` this takes bounded time."""
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
        assert self._transport is not None  # callers get a stream only after connection_made
        return self._transport


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel end a connection whose peer vanished without closing it.

    Control connections have heartbeats, which are faster; other connections may be silent for
    hours.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def octets(buffer: Buffer) -> Buffer:
    """View a buffer as bytes: asyncio counts with `len`, which counts items, not bytes."""
    if isinstance(buffer, memoryview) and buffer.itemsize != 1:
        return buffer.cast("B")
    return buffer


def address_of(name: object) -> Address:
    """Make an address of `getpeername`'s result; a link-local one keeps its scope."""
    host, port, *more = cast("tuple[str, int]", name)
    scope = more[1] if len(more) > 1 else 0
    if scope and "%" not in host:
        host = f"{host}%{scope}"
    return Address(host=host.removeprefix("::ffff:"), port=port)
