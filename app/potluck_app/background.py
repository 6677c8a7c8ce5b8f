"""Run blocking functions in a thread; their results arrive on the GUI thread.

Each `Background` has one thread, so functions run in order: the older state of a conversation never
overwrites the newer one.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct
from PySide6.QtCore import QObject, Qt, Signal

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Job(Struct, frozen=True):
    work: Callable[[], object]
    done: Callable[[Any], object]
    failed: Callable[[Exception], object]


class Background(QObject):
    """A thread that runs blocking functions one after the other.

    What a function belongs to is often an object of Qt, which must not be deleted in another thread.
    So the thread never holds the last reference to it: the thread that asked keeps each job.
    """

    _finished = Signal(int, bool, object)  # number of the job, whether it failed, result or error

    def __init__(self, name: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], object]] | None] = queue.SimpleQueue()
        self._kept: dict[int, _Job] = {}
        self._count = 0
        self._closed = threading.Event()
        self._finished.connect(self._deliver, Qt.ConnectionType.QueuedConnection)
        # A daemon thread: a program whose node does not start must still be able to end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(
        self,
        work: Callable[[], T],
        done: Callable[[T], object] = lambda _result: None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        """Run `work` in the thread. The thread that made this object calls `done` or `failed`."""
        self._count += 1
        self._kept[self._count] = _Job(work, done, failed or self._log)
        self._jobs.put((self._count, work))

    def close(self, timeout_s: float) -> bool:
        """Finish the submitted functions and end. No callback is called after this.

        Returns:
            Whether everything was finished in time.
        """
        self._closed.set()
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if has_ended := not self._thread.is_alive():
            self._kept.clear()
        return has_ended

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            number, work = job
            failed = False
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - a boundary: the caller gets the error
                result, failed = error, True
            del job, work  # before the thread that asked lets go of them
            if not self._closed.is_set():
                self._finished.emit(number, failed, result)

    def _deliver(self, number: int, failed: bool, result: Any) -> None:
        if not self._closed.is_set():
            job = self._kept.pop(number)
            (job.failed if failed else job.done)(result)

    def _log(self, error: Exception) -> None:
        logger.error("work in the background failed thread=%s", self._name, exc_info=error)
