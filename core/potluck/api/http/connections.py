"""The connections of one HTTP listener: how many there are, and how long one may ask for nothing.

Whoever reaches the listener can open connections, also without a key. A connection without a
request is idle: its headers have not arrived yet, or its last answer is over. It is closed after a
while, and earlier when another connection needs its place. So who asks something at once is
answered, however many connections others keep open.

What arrives is parsed in small pieces, with other work between them: a body may come in chunks of
one byte, and each of them takes as long to parse as a large one. A body that the answer did not wait
for is read, so that the client gets the answer, but not parsed, and its connection ends.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 256  # the few programs of a home need less
IDLE_S = 30.0  # also the longest time that the headers of a request may take
PIECE = 16 << 10  # bytes; in chunks of one byte they take 15 ms to parse


class Places:
    """The connections of a listener, the longest idle one first."""

    def __init__(self, most: int = CONNECTIONS, idle_s: float = IDLE_S) -> None:
        self.idle_s = idle_s
        self._most = most
        self._busy: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # a set that keeps the order

    def idle(self, connection: "Connection") -> None:
        """A connection is new, or its last answer is over. Over the limit, an idle one is closed."""
        self._busy.discard(connection)
        self._idle[connection] = None
        if len(self._busy) + len(self._idle) > self._most:
            hosts = Counter(other.host for other in self._idle)
            ((host, _),) = hosts.most_common(1)  # who takes the most places gives one back
            oldest = next(other for other in self._idle if other.host == host)
            self.left(oldest)
            oldest.transport.abort()

    def busy(self, connection: "Connection") -> None:
        """A connection has a request."""
        self._idle.pop(connection, None)
        self._busy.add(connection)

    def left(self, connection: "Connection") -> None:
        """A connection is closed."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)


class Config(uvicorn.Config):
    """uvicorn's configuration of a listener, with the places of its connections."""

    def __init__(self, app: Any, places: Places, **options: Any) -> None:
        super().__init__(app, http=Connection, **options)
        self.places = places


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection. uvicorn itself would wait for the headers of a new one for ever."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(config, **options)
        self.host = ""
        self._places = config.places
        self._piece = memoryview(bytearray(PIECE))  # asyncio's TLS writes into slices of it
        self._is_answered_early = False  # before the body was read
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # pyright: ignore[reportArgumentType] - as uvicorn says
        self.host = self.client[0] if self.client else ""
        self._is_idle()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._piece

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_answered_early:
            self.data_received(bytes(self._piece[:nbytes]))
            self._look()

    def on_response_complete(self) -> None:
        self._is_idle()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._is_answered_early = True
            if self.transport.can_write_eof():  # TLS has no half of a connection
                with suppress(OSError):  # the client is gone
                    self.transport.write_eof()
            return
        self._look()  # the next request may have arrived already

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._places.left(self)
        super().connection_lost(exc)

    def _is_idle(self) -> None:
        self._cancel()
        self._end = self.loop.call_later(self._places.idle_s, self.transport.abort)
        self._places.idle(self)

    def _look(self) -> None:
        """Note the request, if there is one."""
        if not getattr(self.cycle, "response_complete", True):  # without a request, it is None
            self._places.busy(self)
            self._cancel()

    def _cancel(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
