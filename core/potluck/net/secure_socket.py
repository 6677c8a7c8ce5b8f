"""TLS on a socket that never blocks, for threads that read and write it themselves.

With asyncio's streams one event loop waits for all connections, and a message takes two turns of that
loop: too long for one token. Here bytes move between the kernel and OpenSSL when a method is called, in
the thread that calls it. Not thread-safe: its owner has a lock.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from potluck.net.stream import address_of, keep_alive, octets
from potluck.wire.frame import Buffer
from potluck.wire.messages import Address

_READ_BYTES = 256 << 10  # that one system call reads at most; a decode step has 4 to 16 KiB
_WRITE_BYTES = 256 << 10  # encrypted at once, while the kernel sends what came before
_RECORD_BYTES = 16 << 10  # the largest TLS record


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

    async def receive(self) -> None:
        """Wait for bytes of the peer.

        Raises:
            ConnectionResetError: there will be none.
        """
        data = await asyncio.get_running_loop().sock_recv(self._socket, _READ_BYTES)
        if not data:
            raise ConnectionResetError("the connection ended")
        self._incoming.write(data)

    async def flush(self) -> None:
        """Wait until what was written is the kernel's."""
        self._encrypted()
        loop = asyncio.get_running_loop()
        while self._backlog:
            await loop.sock_sendall(self._socket, self._backlog[0])
            self.backlog_bytes -= len(self._backlog.popleft())

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
        """Decrypt into the buffer: how many bytes; 0 at the end, None while nothing is there.

        Raises:
            ssl.SSLError: what came is not the peer's, or was cut off.
        """
        if not self._incoming.pending and not self._incoming.eof and not self.tls.pending():
            return None
        try:
            return self.tls.read(len(buffer), buffer)  # pyright: ignore[reportReturnType, reportArgumentType] - a count, with a buffer
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0

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
        while self._backlog:
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
        with suppress(OSError, ValueError):  # ssl's errors are OSErrors; ValueError: too early
            self.tls.unwrap()
        with suppress(OSError):
            self._encrypted()
            self.send_backlog()
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()

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
