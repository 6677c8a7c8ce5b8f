"""The thread that waits for the disk, so that the computing thread never does."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Timer
from typing import Any

from potluck.engine.caches.disk_work import DiskWork, T
from potluck.system.threads import go_after_others

logger = logging.getLogger(__name__)

LATE_S = 30.0  # reading or writing a cache; computing one again takes about as long


class DiskThread:
    """Does `DiskWork`: several at a time, and one part of them at a time. Used on the computing thread only."""

    def __init__(
        self, resume: Callable[[Callable[[], None]], None], late_s: float = LATE_S
    ) -> None:
        """Make the thread.

        Args:
            resume: runs a function on the computing thread; called in any thread.
            late_s: work that takes longer is given up. While the disk hangs, all work is given up at once.
        """
        self._resume, self._late_s = resume, late_s
        self._executor = ThreadPoolExecutor(1, "disk", go_after_others)
        self._hanging: Future[Any] | None = None  # what the disk was late with

    def __call__(self, work: DiskWork[T], done: Callable[[T | None], object]) -> None:
        """Do work, then call `done` with its result; with None if it failed or was given up."""
        if self._hanging is not None and not self._hanging.done():
            work.close()
            done(None)
            return
        _Running(self, work, done).go_on(lambda: next(work))

    def later(self, part: Callable[[], Any]) -> "Future[Any]":
        """Call a part of some work on the other thread."""
        return self._executor.submit(part)

    def resume(self, job: Callable[[], None]) -> None:
        """Call something on the computing thread."""
        self._resume(job)

    def timer(self, late: Callable[[], None]) -> Timer:
        """Begin to count the time for some work."""
        timer = Timer(self._late_s, partial(self._resume, late))
        timer.daemon = True
        timer.start()
        return timer

    def hangs(self, part: "Future[Any]") -> None:
        """Note that a part was waited for too long."""
        self._hanging = part


class _Running:
    """Work that is being done."""

    def __init__(
        self, thread: DiskThread, work: DiskWork[Any], done: Callable[[Any], object]
    ) -> None:
        self._thread, self._work, self._done = thread, work, done
        self._part: Future[Any] | None = None
        self._has_ended = False
        self._timer = thread.timer(self._late)

    def go_on(self, advance: Callable[[], Callable[[], Any]]) -> None:
        """Go on with the work until its next part; `advance` does so and returns it."""
        if self._has_ended:
            return
        try:
            part = advance()
        except StopIteration as end:
            self._end(end.value)
        except Exception:
            logger.exception("work with the disk failed")
            self._end(None)
        else:
            self._part = self._thread.later(part)
            self._part.add_done_callback(
                lambda part: self._thread.resume(partial(self._came, part))
            )

    def _came(self, part: "Future[Any]") -> None:
        error = part.exception()
        if error is None:
            self.go_on(lambda: self._work.send(part.result()))
        else:
            self.go_on(lambda: self._work.throw(error))

    def _late(self) -> None:
        if self._has_ended:
            return
        logger.warning("the disk is too slow or hangs: a conversation's cache is given up")
        if self._part is not None:
            self._thread.hangs(self._part)
        self._work.close()
        self._end(None)

    def _end(self, result: Any) -> None:
        self._has_ended = True
        self._timer.cancel()
        self._done(result)
