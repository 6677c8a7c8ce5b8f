"""TLS on a socket that never blocks. `stream.py` and `step_link.py` say when to read and write it.

Bytes move between the kernel and OpenSSL when a method is called, in the thread that calls it. Not
thread-safe: its owner has a lock, or is an event loop.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from potluck.sockets import keep_alive, wake_at
from potluck.wire.frame import Buffer
from potluck.wire.messages import Address

_READ_BYTES = 256 << 10  # that one system call reads at most; a decode step has 4 to 16 KiB
_WRITE_BYTES = 256 << 10  # encrypted at once, while the kernel sends what came before
_RECORD_BYTES = 16 << 10  # the largest TLS record
_OVERHEAD_BYTES = 1 << 10  # that TLS adds to a record, and more


class SecureSocket:
    """One connection, after `connect` or `accept` with its TLS handshake done."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        """Use `connect` or `accept`."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock)
        self.remote: Address = address_of(sock.getpeername())
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject = context.wrap_bio(
            self._incoming, self._outgoing, server_side=name is None, server_hostname=name
        )
        self._scratch = memoryview(bytearray(_READ_BYTES))
        self._backlog: deque[memoryview] = deque()  # encrypted, and not taken by the kernel yet
        self.backlog_bytes = 0
        self._is_flushing = False
        self._wakes_at = 1  # bytes that have to arrive until the kernel wakes who waits for them
        self.taken_at = time.monotonic()  # when the kernel last took something, or all was taken

    # --- the beginning, in an event loop; the caller sets the deadline

    @classmethod
    async def connect(cls, address: Address, context: ssl.SSLContext, name: str) -> "SecureSocket":
        """Dial an address, and authenticate it by its name.

        Raises:
            OSError: nobody answers there; `ssl.SSLError` if it is somebody else.
        """
        return await cls._begin(await _connected(address), context, name)

    @classmethod
    async def accept(cls, accepted: socket.socket, context: ssl.SSLContext) -> "SecureSocket":
        """Do the TLS handshake of a server on an accepted connection.

        Raises:
            OSError: the connection ended; `ssl.SSLError` if the handshake failed.
        """
        return await cls._begin(accepted, context, None)

    @classmethod
    async def _begin(
        cls, sock: socket.socket, context: ssl.SSLContext, name: str | None
    ) -> "SecureSocket":
        try:
            secure = cls(sock, context, name)
            await secure._handshake()
        except BaseException:
            sock.close()
            raise
        return secure

    async def _handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self.receive()
            except ssl.SSLError:
                with suppress(OSError):
                    await self.flush()  # the alert that tells the peer why
                raise
            else:
                await self.flush()
                return

    async def receive(self, missing: int = 0) -> None:
        """Wait for bytes of the peer.

        A wakeup costs as much as decrypting 100 KB, and there would be one for every 20 KB at 1 Gbit/s.
        So the kernel is asked for many bytes at once, where these are sure to come.

        Args:
            missing: bytes that are sure to come, and were not read yet.

        Raises:
            ConnectionResetError: there will be none.
        """
        begun = _RECORD_BYTES + _OVERHEAD_BYTES  # of a record that OpenSSL has a part of
        self._wake_at(max(1, min(missing - begun, _READ_BYTES)))
        loop = asyncio.get_running_loop()
        count = await loop.sock_recv_into(self._socket, cast("bytearray", self._scratch))
        if not count:
            raise ConnectionResetError("the connection ended")
        self._incoming.write(self._scratch[:count])

    def _wake_at(self, count: int) -> None:
        if count != self._wakes_at:
            wake_at(self._socket, count)
            self._wakes_at = count

    async def flush(self) -> None:
        """Wait until what was written is the kernel's. What is written meanwhile comes after it."""
        self._encrypted()
        loop = asyncio.get_running_loop()
        self._is_flushing = True
        try:
            while self._backlog:
                await loop.sock_sendall(self._socket, self._backlog[0])
                self.backlog_bytes -= len(self._backlog.popleft())
        finally:
            self._is_flushing = False

    async def say_end(self) -> None:
        """Send what was written, and that nothing more comes.

        Raises:
            OSError: the connection broke.
        """
        self._end_tls()
        await self.flush()
        self._socket.shutdown(socket.SHUT_WR)

    # --- reading and writing, in any thread

    def fileno(self) -> int:
        return self._socket.fileno()

    def fill(self) -> bool:
        """Take the bytes that the kernel has; whether there were any. `read_into` reports the end.

        Raises:
            OSError: the connection broke.
        """
        try:
            count = self._socket.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return False
        if count:
            self._incoming.write(self._scratch[:count])
        else:
            self._incoming.write_eof()
        return True

    def read_into(self, buffer: memoryview) -> int | None:
        """Decrypt as much as fits into the buffer: how many bytes; 0 at the end, None while nothing is there.

        Raises:
            ssl.SSLError: what came is not the peer's, or was cut off.
        """
        if not self._incoming.pending and not self._incoming.eof and not self.tls.pending():
            return None
        count, view = 0, buffer
        try:
            while view:  # OpenSSL gives out one record at a time
                taken = cast("int", self.tls.read(len(view), cast("bytearray", view)))
                if not taken:
                    break
                count += taken
                view = buffer[count:]
        except ssl.SSLWantReadError:
            return count or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        if view:
            self._incoming.write_eof()  # so that the next call says it again
        return count

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Encrypt all, send what the kernel takes, and keep the rest. The buffers may be reused at once.

        Raises:
            OSError: the connection broke.
        """
        pieces = [octets(buffer) for buffer in buffers]
        if sum(map(len, pieces)) <= _RECORD_BYTES:  # a decode step: one record
            pieces = [b"".join(pieces)]
        for piece in pieces:
            view = memoryview(piece)
            while view:
                view = view[self.tls.write(view[:_WRITE_BYTES]) :]
                if view:
                    self._hand_over()
        self._hand_over()

    def send_backlog(self) -> None:
        """Send what the kernel did not take before.

        Raises:
            OSError: the connection broke.
        """
        while self._backlog and not self._is_flushing:
            data = self._backlog[0]
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                return
            self.backlog_bytes -= sent
            self.taken_at = time.monotonic()
            if sent < len(data):
                self._backlog[0] = data[sent:]
                return
            self._backlog.popleft()

    def _hand_over(self) -> None:
        self._encrypted()
        self.send_backlog()

    def _encrypted(self) -> None:
        if data := self._outgoing.read():
            if not self._backlog:
                self.taken_at = time.monotonic()
            self._backlog.append(memoryview(data))
            self.backlog_bytes += len(data)

    # --- the end

    def close(self) -> None:
        """Say that nothing more comes, if the kernel takes that at once, and end."""
        if self._socket.fileno() < 0:
            return
        self._end_tls()
        with suppress(OSError):
            self._encrypted()
            self.send_backlog()
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()

    def _end_tls(self) -> None:
        with suppress(OSError, ValueError):  # ssl's errors are OSErrors; ValueError: too early
            self.tls.unwrap()

    def abort(self) -> None:
        """End at once."""
        self._socket.close()

    async def wait_closed(self) -> None:
        """Nothing to wait for: `close` is all."""


async def _connected(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    error = OSError("the name has no address")
    for family, kind, protocol, _, name in found:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, name)
        except OSError as failed:
            sock.close()
            error = failed
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise error


def octets(buffer: Buffer) -> Buffer:
    """View a buffer as bytes, so that `len` counts bytes and not items."""
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
