"""The one thread that computes, and waits for steps while it has nothing to compute.

A token passes from the kernel to torch and back without another thread in between. Whatever takes
longer than a token is done with relief: a second thread reads and writes the links meanwhile.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from potluck.net.reactor import Reactor

logger = logging.getLogger(__name__)

AWAKE_S = 0.02  # to be woken costs a token 0.1 ms here and there: of a longer wait that is nothing

_T = TypeVar("_T")


class ComputeThread(threading.Thread):
    """Runs what it is given and what its reactor's links bring, one after the other, for ever."""

    def __init__(self, die: Callable[[], object] = lambda: os._exit(1)) -> None:
        """Make it; `start` starts it.

        Args:
            die: called when its threads cannot go on. A process that computes no more had better
                end, since its node starts another.
        """
        super().__init__(name="compute", daemon=True)
        self.reactor = Reactor()
        self._die = die
        self._relief = _Relief(self.reactor, die)
        self._expects_token = False

    def run(self) -> None:
        with _fatal(self._die):
            self._serve()

    def _serve(self) -> None:
        self._relief.start()
        awake_s = 0.0
        with self._relief.turn:
            while True:
                while self.reactor.work():
                    pass
                is_decoding, self._expects_token = self._expects_token, False
                began = time.monotonic()
                self.reactor.turn(awake_s if is_decoding else 0.0)
                if is_decoding:  # a wait that takes longer is slept through the next time
                    awake_s = AWAKE_S if time.monotonic() - began < AWAKE_S else 0.0

    def expect_token(self) -> None:
        """On this thread: what comes next is likely a token, and soon."""
        self._expects_token = True

    @contextmanager
    def relieved(self) -> Iterator[None]:
        """Compute for long, on this thread: the links are served by another until it is over."""
        self._relief.begin()
        try:
            yield
        finally:
            self._relief.end()

    def give_up(self) -> None:
        """End the process: what it computes on is lost to it, and not to the one that follows."""
        logger.critical("the device is lost, and this process with it")
        self._die()

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job that handles its own errors."""
        self.reactor.put(lambda: self._run(job))

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function, and return or raise what it does."""
        future: Future[_T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
                future.set_exception(error)

        self.submit(job)
        try:
            return await asyncio.wrap_future(future)
        except Exception:
            # The error leads to these frames, and they to it: what the function held, most of a GPU
            # perhaps, would be free when the garbage is collected, and not when the next load asks.
            del future
            raise

    def _run(self, job: Callable[[], None]) -> None:
        with self.relieved():
            job()


class _Relief(threading.Thread):
    """Takes the turns at the reactor while it is asked to."""

    def __init__(self, reactor: Reactor, die: Callable[[], object]) -> None:
        super().__init__(name="relief", daemon=True)
        self._die = die
        self.turn = threading.Lock()  # whoever holds it may call the reactor's `turn`
        self._reactor = reactor
        self._is_wanted = threading.Event()

    def run(self) -> None:
        with _fatal(self._die):
            while True:
                self._is_wanted.wait()
                with self.turn:
                    while self._is_wanted.is_set():
                        self._reactor.turn()

    def begin(self) -> None:
        self._is_wanted.set()
        self.turn.release()

    def end(self) -> None:
        self._is_wanted.clear()
        self._reactor.wake()
        self.turn.acquire()


@contextmanager
def _fatal(die: Callable[[], object]) -> Iterator[None]:
    """The boundary of a thread without which nothing goes on."""
    try:
        yield
    except BaseException:
        logger.critical("thread %s failed", threading.current_thread().name, exc_info=True)
        die()
