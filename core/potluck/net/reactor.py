"""Waits for step links, in whichever thread has the turn, and hands on what they bring.

The thread that computes also waits for steps: the arrival of a token's hidden states wakes that thread
and no other one first. While it computes for long, another thread takes its turns here, so that chunks
keep flowing in and out. A message is given to its link's receiver by the thread that read it.
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from potluck.wire.messages import Message

logger = logging.getLogger(__name__)

Delivery: TypeAlias = tuple[Message, memoryview]  # a message and its payload
OnMessage: TypeAlias = Callable[[Message, memoryview], None]
_YIELD: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))


class Readable(Protocol):
    """What a reactor needs of a link."""

    @property
    def is_closed(self) -> bool: ...
    @property
    def has_backlog(self) -> bool:
        """Whether `send_backlog` is due as soon as the socket can be written."""
        ...

    def fileno(self) -> int: ...
    def read(self) -> list[Delivery]: ...
    def send_backlog(self) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None:
        """Close the socket, after the link has ended."""
        ...


@dataclass(slots=True)
class _Served:
    receiver: OnMessage
    events: int = 0  # that are waited for


class Reactor:
    """Links, and who gets their messages.

    One thread at a time may be in `turn`; everything else may be called by any thread.
    """

    def __init__(self, is_full: Callable[[], bool] = lambda: False) -> None:
        """Make one without links.

        Args:
            is_full: whether the receivers can take no more now; links are not read then. Asked at
                the beginning of a turn.
        """
        self._is_full = is_full
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._links: dict[Readable, _Served] = {}
        self._new: deque[tuple[Readable, OnMessage]] = deque()

    def add(self, link: Readable, receiver: OnMessage) -> None:
        """Serve a link until it ends: `turn` gives its messages to the receiver, in order."""
        self._new.append((link, receiver))
        self.wake()

    def wake(self) -> None:
        """End the wait in `turn`."""
        with suppress(OSError):  # there are bytes enough to wake it, or it is closed
            self._waker.send(b"\0")

    def turn(self, awake_s: float = 0.0) -> None:
        """Wait until a link can be read or written, or `wake` was called, and do what is due.

        Args:
            awake_s: so many seconds without sleeping first, since waking a thread takes a while.
        """
        if self._begin_links():
            return  # what came with a handshake is not in the socket any more
        self._look_at_links()
        self._serve(self._wait(awake_s))

    def poll(self) -> None:
        """A turn that does not wait."""
        self._begin_links()
        self._look_at_links()
        self._serve(self._selector.select(0))

    def _serve(self, ready: "list[tuple[selectors.SelectorKey, int]]") -> None:
        for key, events in ready:
            if key.data is None:
                self._woken.recv(4096)
                continue
            if events & selectors.EVENT_WRITE:
                key.data.send_backlog()
            if events & selectors.EVENT_READ:
                self._read(key.data)

    def _wait(self, awake_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        if awake_s:
            # `time.monotonic` moves by 16 ms on Windows before Python 3.13, which is longer than this waits.
            until = time.perf_counter() + awake_s
            while time.perf_counter() < until:
                if ready := self._selector.select(0):
                    return ready
                _YIELD()
        return self._selector.select()

    def close(self) -> None:
        """Let go of everything; no thread is in `turn` any more."""
        for link in [*self._links, *(link for link, _ in self._new)]:
            link.close()
            link.release()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _read(self, link: Readable) -> bool:
        """Give the receiver what has arrived; whether there was anything."""
        receiver, deliveries = self._links[link].receiver, link.read()
        for message, payload in deliveries:
            try:
                receiver(message, payload)
            except Exception:  # the boundary of a thread that others rely on
                logger.exception("a message could not be handled op=%s", type(message).__name__)
        return bool(deliveries)

    def _begin_links(self) -> bool:
        """Read what new links have received already. Return whether there was anything."""
        any_arrived = False
        while self._new:
            link, receiver = self._new.popleft()
            self._links[link] = _Served(receiver)
            any_arrived |= self._read(link)
        return any_arrived

    def _look_at_links(self) -> None:
        """Wait for what each needs, and end those that have ended."""
        reads = 0 if self._is_full() else selectors.EVENT_READ
        for link, served in list(self._links.items()):
            is_over = link.is_closed  # read once: another thread may close it meanwhile
            writes = selectors.EVENT_WRITE if link.has_backlog else 0
            events = 0 if is_over else reads | writes
            if events != served.events:
                self._wait_for(link, served, events)
            if is_over:
                del self._links[link]
                link.release()

    def _wait_for(self, link: Readable, served: _Served, events: int) -> None:
        if not served.events:
            self._selector.register(link, events, link)
        elif events:
            self._selector.modify(link, events, link)
        else:
            self._selector.unregister(link)
        served.events = events


class ReactorThread(threading.Thread):
    """A thread that does nothing but serve a reactor, until it is stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.reactor = Reactor()
        self._is_stopped = False

    def run(self) -> None:
        try:
            while not self._is_stopped:
                self.reactor.turn()
        except Exception:  # the boundary: who waits for its links hears that they ended
            logger.exception("thread %s failed", self.name)
        finally:
            self.reactor.close()

    def stop(self) -> None:
        """End it and its links, soon."""
        self._is_stopped = True
        self.reactor.wake()
