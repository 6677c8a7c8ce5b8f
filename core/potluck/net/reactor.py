"""Waits for step links and for work of other threads, in whichever thread has time for it.

The thread that computes is also the one that waits for steps: a token's hidden states wake it, and
nobody in between. While it computes for long, another thread takes its turns here, so that chunks
keep flowing in and out. What arrives becomes work in one queue, in the order in which it came.
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
from functools import partial
from typing import Protocol, TypeAlias

from potluck.wire.messages import Forward, Message

logger = logging.getLogger(__name__)

INBOX_LIMIT = 64 << 20  # bytes that wait for their turn before reading stops: a prompt's chunks
_MESSAGE_COST = 1024  # what a message without payload counts there
_ID_COST = 40  # a token id of a history, as an object in a tuple

Delivery: TypeAlias = tuple[Message, memoryview]  # a message and its payload
_YIELD: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))

Receiver: TypeAlias = Callable[[Message, memoryview], None]
Work: TypeAlias = Callable[[], None]


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
    receiver: Receiver
    events: int = 0  # that are waited for


class Reactor:
    """A queue of work, and the links whose messages become such.

    One thread at a time may be in `turn`; `work` is the worker's alone; the rest is for everybody.
    """

    def __init__(self) -> None:
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._links: dict[Readable, _Served] = {}
        self._new: deque[tuple[Readable, Receiver]] = deque()
        self._inbox: deque[tuple[int, Work]] = deque()
        self._taken = self._done = 0  # bytes; each is written by one thread alone

    def add(self, link: Readable, receiver: Receiver) -> None:
        """Serve a link until it ends: its messages go to the receiver, by `work`."""
        self._new.append((link, receiver))
        self.wake()

    def put(self, work: Work) -> None:
        """Have this done when its turn comes."""
        self._inbox.append((0, work))
        self.wake()

    def wake(self) -> None:
        """End the wait in `turn`."""
        with suppress(OSError):  # there are bytes enough to wake it, or it is closed
            self._waker.send(b"\0")

    def turn(self, awake_s: float = 0.0) -> None:
        """Wait until something happens, and take it in.

        Args:
            awake_s: so long without sleeping, since to be woken takes a while.
        """
        if self._begin_links():
            return  # what came with a handshake is not in the socket any more
        self._look_at_links()
        for key, events in self._wait(awake_s):
            if key.data is None:
                self._woken.recv(4096)
                continue
            if events & selectors.EVENT_WRITE:
                key.data.send_backlog()
            if events & selectors.EVENT_READ:
                self._take(key.data)

    def _wait(self, awake_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        if awake_s:
            until = time.monotonic() + awake_s
            while time.monotonic() < until:
                if ready := self._selector.select(0):
                    return ready
                _YIELD()
        return self._selector.select()

    def work(self) -> bool:
        """Do what has waited longest; False: nothing waits."""
        if not self._inbox:
            return False
        cost, work = self._inbox.popleft()
        self._done += cost
        try:
            work()
        except Exception:  # the boundary of a thread that others rely on
            logger.exception("work failed")
        return True

    def close(self) -> None:
        """Let go of everything; no thread is in `turn` any more."""
        for link in [*self._links, *(link for link, _ in self._new)]:
            link.close()
            link.release()
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _take(self, link: Readable) -> None:
        receiver = self._links[link].receiver
        for message, payload in link.read():
            cost = _MESSAGE_COST + payload.nbytes + _history_bytes(message)
            self._taken += cost
            self._inbox.append((cost, partial(receiver, message, payload)))

    def _begin_links(self) -> bool:
        """Take in what new links have received already; whether there was anything."""
        before = self._taken
        while self._new:
            link, receiver = self._new.popleft()
            self._links[link] = _Served(receiver)
            self._take(link)
        return self._taken > before

    def _look_at_links(self) -> None:
        """Wait for what each needs, and end those that have ended."""
        reads = selectors.EVENT_READ if self._taken - self._done <= INBOX_LIMIT else 0
        for link, served in list(self._links.items()):
            is_over = link.is_closed  # seen once: any thread may end it meanwhile
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


def _history_bytes(message: Message) -> int:
    """What the longest list that a step may bring takes in memory."""
    if not isinstance(message, Forward) or message.sampling is None:
        return 0
    return _ID_COST * len(message.sampling.history or ())


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
                while self.reactor.work():
                    pass
        except Exception:  # the boundary: who waits for its links hears that they ended
            logger.exception("thread %s failed", self.name)
        finally:
            self.reactor.close()

    def stop(self) -> None:
        """End it and its links, soon."""
        self._is_stopped = True
        self.reactor.wake()
