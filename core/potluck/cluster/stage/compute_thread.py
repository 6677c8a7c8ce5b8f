"""The one thread that computes. While it has nothing to compute, it waits for steps itself.

So a token passes from the socket to the kernel and back without another thread in between. While
this thread does work that takes longer than a token, a second thread, the relief, serves the links.

Only the thread that has the turn at the reactor uses the scheduler.
"""

import asyncio
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Literal, TypeVar

from potluck.cluster.stage.scheduler import Group, Kind, Scheduler
from potluck.cluster.stage.step_watch import StepWatch
from potluck.net.reactor import Reactor

logger = logging.getLogger(__name__)

# waking a thread takes 0.1 ms; spinning saves that, but pays only for waits below this
AWAKE_S = 0.02
QUIET_S = 1.0  # since the last group: the next token of an answer comes sooner, mostly

_T = TypeVar("_T")


def end_process() -> None:
    """End the process at once, as in a crash. Its node starts another one."""
    logger.critical("this process cannot compute any more, and ends")
    os._exit(1)


class ComputeThread(threading.Thread):
    """Runs jobs of other threads, and the groups of messages that its scheduler gives out.

    Jobs go before groups, in the order in which they were submitted.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        run_group: Callable[[Group], None],
        die: Callable[[], object] = end_process,
        *,
        watch: StepWatch | None = None,
    ) -> None:
        """Make the thread; `start` starts it.

        Args:
            scheduler: the receivers of the links of `reactor` put messages into it.
            run_group: handles the messages of a group; called on this thread.
            die: called when this thread or its relief has failed and cannot go on.
            watch: told of the beginning and the end of each group.
        """
        super().__init__(name="compute", daemon=True)
        self.reactor = Reactor(is_full=lambda: scheduler.is_full)
        self._scheduler = scheduler
        self._run_group = run_group
        self._die = die
        self._watch = watch if watch is not None else StepWatch()
        self._jobs: deque[Callable[[], None]] = deque()
        self._short: deque[Callable[[], None]] = deque()
        self._relief = _Relief(self.reactor, die)
        self._has_group, self._last_group = False, -math.inf  # the latter: when it ended

    @property
    def is_answering(self) -> bool:
        """Whether a step is computed or waits, or one was until a moment ago. Any thread may ask."""
        is_quiet = time.perf_counter() - self._last_group > QUIET_S
        return self._has_group or self._scheduler.waiting > 0 or not is_quiet

    def run(self) -> None:
        with _fatal(self._die):
            self._serve()

    def _serve(self) -> None:
        self._relief.start()
        awake_s, done = 0.0, None
        with self._relief.turn:
            while True:
                before, done = done, self._work()
                if done is not None:
                    continue
                is_decoding = before in ("token", "drafts")  # the next token comes soon
                began = time.perf_counter()
                self.reactor.turn(awake_s if is_decoding else 0.0)
                if is_decoding:  # after a longer wait, sleep the next time instead of spinning
                    awake_s = AWAKE_S if time.perf_counter() - began < AWAKE_S else 0.0

    def _work(self) -> "Kind | Literal['job'] | None":
        """Run the next job or group, and return its kind; None: there was nothing to do."""
        try:
            if self._short:
                self._short.popleft()()
                return "job"
            if self._jobs:
                with self._relieved():
                    self._jobs.popleft()()
                return "job"
            group = self._scheduler.next()
            if group is None:
                return None
            self._has_group = True
            self._watch.begin(group.kind, group.tokens)
            try:
                if group.kind in ("chunk", "room"):
                    with self._relieved():
                        self._run_group(group)
                else:
                    self._run_group(group)
            finally:
                self._watch.end()
                self._has_group, self._last_group = False, time.perf_counter()
            if (
                self._scheduler.waiting
            ):  # a token that has just arrived goes before a chunk that waits
                self.reactor.poll()
        except Exception:  # the boundary of a thread that others rely on
            logger.exception("work failed")
            return "job"
        return group.kind

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job run on this thread. It must handle its own errors."""
        self._jobs.append(job)
        self.reactor.wake()

    def submit_short(self, job: Callable[[], None]) -> None:
        """Have a job run on this thread that takes no longer than a token. It may use the scheduler."""
        self._short.append(job)
        self.reactor.wake()

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function on this thread, and return its result or raise its error."""
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
            # The error refers to these frames, and they refer to it through the future. Without
            # this `del` such a cycle keeps what the function held, perhaps most of a GPU's memory,
            # until the garbage is collected, and the next load would find it taken.
            del future
            raise

    @contextmanager
    def _relieved(self) -> Iterator[None]:
        """Have the relief serve the links until the end of the block. Used on this thread only."""
        self._relief.begin()
        try:
            yield
        finally:
            self._relief.end()


class _Relief(threading.Thread):
    """The thread that takes the turns at the reactor between `begin` and `end`."""

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
    """Call `die` if an error leaves the block. For threads that the process cannot do without."""
    try:
        yield
    except BaseException:
        logger.critical("thread %s failed", threading.current_thread().name, exc_info=True)
        die()
