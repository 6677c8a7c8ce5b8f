"""Server-sent events, and work that is cancelled when the client goes away.

Both watch the connection while they work: a closed browser tab must free the cluster at once, not
after the last token. A generator runs in one task from its first step to its last, so it may hold
time limits and task groups open while it yields.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from potluck.errors import ClosedError

# Seconds between comment lines. Proxies and clients give up after 30 s of silence.
HEARTBEAT_S = 10.0
CANCEL_S = 0.5  # to wait for a generator that is cancelled; undoing a load may take longer

_T = TypeVar("_T")


class ClientGoneError(Exception):
    """The client closed the connection, so nobody is left to answer."""


@dataclass(frozen=True, slots=True)
class Comment:
    """A line of an event stream that clients ignore, unless they know it."""

    text: str


@dataclass(frozen=True, slots=True)
class Event:
    """An event that has a name."""

    name: str
    data: bytes


class EventStream(Response):
    """A response that is made while it is sent.

    Each item of `events` becomes one `data:` line, with the line of its name if it has one, or a comment.

    The status line waits for the first item, so an error before it is answered by `refuse`, with a
    status. The generator itself must yield a later error. The generator is closed in every case,
    also when the client goes away.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes | Comment, None]
        | AsyncGenerator[Event | Comment, None]
        | AsyncGenerator[bytes, None],
        refuse: Callable[[Exception], Response],
        *,
        last_words: Callable[[Exception], bytes | Event] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """Make a response.

        Args:
            events: the data of the events, and comments.
            refuse: the answer to an error before the first event.
            last_words: the data of a last event, if this server stops before the end; None: the
                stream ends without.
            heartbeat_s: seconds between comments in a silence.
        """
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._refuse = refuse
        self._last_words = last_words
        self._heartbeat_s = heartbeat_s
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(send))
        gone = asyncio.create_task(wait_disconnect(receive))
        try:
            if await self._is_stopped(pump, gone, send):
                pump.cancel()
                await asyncio.wait([pump], timeout=CANCEL_S)  # then it sends nothing any more
                await self._break_off(send)
        except Exception as error:
            if self._started:
                raise
            await self._refuse(error)(scope, receive, send)
        finally:
            await _cancel(pump, gone)

    async def _pump(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for event in events:
                if not self._started:
                    await self._start(send)
                await _send_part(send, self._framed(event))
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )

    async def _break_off(self, send: Send) -> None:
        """End the stream because this server stops: in a proper way, and not without a word."""
        error = ClosedError("Potluck stopped serving before the answer was complete.")
        if not self._started:
            raise error
        if self._last_words is not None:
            await _send_part(send, self._framed(self._last_words(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _is_stopped(
        self, pump: asyncio.Task[None], gone: asyncio.Task[bool], send: Send
    ) -> bool:
        """Wait for the end of the stream. Returns whether this server stops before it."""
        while True:
            done, _ = await asyncio.wait(
                (pump, gone), timeout=self._heartbeat_s, return_when=asyncio.FIRST_COMPLETED
            )
            if pump in done:
                pump.result()
                return False
            if gone in done:
                return gone.result()
            if self._started:
                await _send_part(send, self._framed(Comment("still here")))

    def _framed(self, event: bytes | Event | Comment) -> bytes:
        """The bytes of an event."""
        match event:
            case Comment(text):
                return f": {text}\n\n".encode()
            case Event(name, data):
                return f"event: {name}\ndata: ".encode() + data + b"\n\n"
            case data:
                return b"data: " + data + b"\n\n"


class LineStream(EventStream):
    """The same as lines of JSON, without comments.

    An error after the first line is the last one: see `last_words`.
    """

    media_type = "application/x-ndjson"

    def _framed(self, event: bytes | Event | Comment) -> bytes:
        return event + b"\n" if isinstance(event, bytes) else b""


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def wait_disconnect(receive: Receive) -> bool:
    """Return when the client has gone. The body of the request must have been read before.

    Returns:
        Whether the client is still there, and this server stops.
    """
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message.get("stops", False)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Await the work. Cancel it if the client goes away.

    Raises:
        ClientGoneError: the client went away first; the work was cancelled and has ended.
        ClosedError: the same, because this server stops.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(wait_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            if gone.result():
                raise ClosedError("Potluck stopped serving before the answer was complete.")
            raise ClientGoneError
        return task.result()
    finally:
        await _cancel(task, gone)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
