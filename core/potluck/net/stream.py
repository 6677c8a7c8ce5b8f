"""A TLS byte stream in an event loop: bytes, flow control and the end, but no messages.

Two tasks of a stream wait for its socket: one reads all the time, and one writes what the kernel did not
take at once. asyncio has such streams too. They cost twice the time of TLS itself: they copy a chunk of
weights four times, and wake up for each packet that arrives (`tests/bench_transfer.py`).
"""

import asyncio
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from potluck.errors import PeerLostError, PeerTimeoutError
from potluck.net.secure_socket import SecureSocket
from potluck.tasks import reschedule
from potluck.wire.frame import Buffer
from potluck.wire.messages import Address

CLOSE_TIMEOUT_S = 2.0  # for unsent bytes and the peer's end
_SCRAP_BYTES = 64 << 10


class Sink(Protocol):
    """Receives the bytes of a stream."""

    @property
    def missing(self) -> int:
        """Bytes that are sure to come, since the peer has announced them."""
        ...

    def get_buffer(self) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def stream_ended(self, error: Exception | None) -> None:
        """Called once, after the last byte."""
        ...


class Stream:
    """One connection after its TLS handshake. It reads only once a sink is attached."""

    def __init__(self, secure: SecureSocket) -> None:
        """Use `connect` or `accept`."""
        self.tls: ssl.SSLObject = secure.tls
        self.remote: Address = secure.remote
        self._secure = secure
        self._sink: Sink | None = None
        self._readable = asyncio.Event()  # there is a sink, and it takes bytes
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False  # `stream_ended` was called
        self._error: Exception | None = None
        self._closed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._flushing: asyncio.Task[None] | None = None  # while the kernel takes no more
        self._ending: asyncio.Task[None] | None = None
        self._end_by = float("inf")  # time of the event loop, once it ends
        self._patience: asyncio.Timeout | None = None

    @classmethod
    async def connect(cls, address: Address, context: ssl.SSLContext, name: str) -> "Stream":
        """Dial an address, and check its certificate's name. The caller sets the deadline.

        Raises:
            OSError: nobody answers there; `ssl.SSLError` if another node answers.
        """
        return cls(await SecureSocket.connect(address, context, name))

    @classmethod
    async def accept(cls, accepted: socket.socket, context: ssl.SSLContext) -> "Stream":
        """Do the TLS handshake of an accepted connection. The caller sets the deadline.

        Raises:
            OSError: the connection ended; `ssl.SSLError` if the TLS handshake fails.
        """
        return cls(await SecureSocket.accept(accepted, context))

    @property
    def is_closing(self) -> bool:
        return self._over or self._ending is not None

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
            self._readable.set()

    def pause_reading(self) -> None:
        """Stop reading. The peer must wait once our buffers are full and TCP's window closes."""
        if not self.is_closing:
            self._readable.clear()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        self._readable.set()

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Write these buffers together; without effect if the stream has ended.

        Their memory is free again when this returns.
        """
        if self.is_closing:
            return
        try:
            self._secure.write(buffers)
        except OSError as error:
            self._break(error)
            return
        if self._secure.backlog_bytes and self._flushing is None:
            self._writable.clear()
            self._flushing = asyncio.create_task(self._flush())

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

    # --- reading and writing

    async def _read(self) -> None:
        error = None
        try:
            await self._readable.wait()
            while self._deliver():
                self.write(())  # what TLS answers by itself
                if self._readable.is_set():
                    await self._secure.receive(self._sink.missing if self._sink else 0)
                    await asyncio.sleep(0)  # `receive` does not wait for what is here already
                await self._readable.wait()
        except OSError as failed:
            error = failed
        self._end(error)
        self.close()

    def _deliver(self) -> bool:
        """Give the sink what has arrived. Return False at the end of the stream."""
        while self._readable.is_set():
            sink = None if self.is_closing else self._sink
            buffer = memoryview(bytearray(_SCRAP_BYTES)) if sink is None else sink.get_buffer()
            count = self._secure.read_into(buffer)
            if count is None:
                break
            if not count:
                return False
            if sink is not None:
                sink.buffer_updated(count)
        return True

    async def _flush(self) -> None:
        try:
            await self._secure.flush()
        except OSError as error:
            self._break(error)
        self._flushing = None
        self._writable.set()

    # --- the end

    def close(self) -> None:
        """Send the bytes written before, then end."""
        self._end_within(CLOSE_TIMEOUT_S)

    def abort(self) -> None:
        """End at once."""
        self._end_within(0.0)

    async def wait_closed(self) -> None:
        """Wait until the stream has ended; after `close` or `abort` this takes bounded time."""
        await self._closed.wait()

    def _break(self, error: OSError) -> None:
        self._end(error)
        self.abort()

    def _end(self, error: Exception | None) -> None:
        if self._over:
            return
        self._over, self._error = True, error
        self._writable.set()
        if self._sink is not None:
            self._sink.stream_ended(error)

    def _end_within(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._end_by = min(self._end_by, now + seconds)
        if self._patience is not None:
            reschedule(self._patience, self._end_by - now)
        if self._ending is None:
            self._ending = asyncio.create_task(self._finish())
            self._readable.set()  # what still comes is dropped

    async def _finish(self) -> None:
        try:
            with suppress(OSError):  # a TimeoutError is one too
                if self._end_by > asyncio.get_running_loop().time():
                    async with asyncio.timeout_at(self._end_by) as self._patience:
                        await self._say_end()
            waiting = [self._reading, *([self._flushing] if self._flushing else [])]
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)  # they let go of the socket
        finally:
            self._secure.abort()
            self._end(None)
            self._closed.set()

    async def _say_end(self) -> None:
        """Send what is left, say that nothing more comes, and wait until the peer does the same."""
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        await self._secure.say_end()
        await asyncio.wait([self._reading])
