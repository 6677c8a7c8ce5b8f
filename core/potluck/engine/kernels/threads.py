"""The threads that share the work of kernels: they spin for a moment after each job, then sleep.

The products of one token follow each other within microseconds. Waking a thread takes longer, so the
threads spin. Between tokens they sleep, since other stages need the cores. torch has threads of its
own, which must sleep too: set `OMP_WAIT_POLICY` to PASSIVE before torch is imported.
"""

import ctypes
import threading
import weakref
from ctypes import addressof

from potluck.engine.kernels.library import Library
from potluck.engine.kernels.threads_kernel import JOB_BYTES, STOPPING, emit_run, emit_serve

PATIENCE = 4000  # how often a thread looks for work before it sleeps, which takes 100 to 200 µs
_LINE = 128  # bytes that processors fetch together


class Threads:
    """Threads that share jobs with the caller's thread, one job at a time."""

    def __init__(self, library: Library, count: int) -> None:
        self.count = count
        self._job = _Job(library)
        self._run = library.get(emit_run)
        for number in range(1, count):
            name = f"kernels-{number}"
            threading.Thread(target=_serve, args=(self._job,), name=name, daemon=True).start()
        # The threads refer to the job alone, so that they end too when nobody uses them any more.
        self._stop = weakref.finalize(self, self._job.stop)

    def run(self, piece: int, arguments: int, blocks: int, step: int) -> None:
        """Call the function at `piece` for all blocks, `step` of them at a time."""
        self._job.wake()
        self._run(self._job.address, piece, arguments, blocks, step)

    @property
    def job(self) -> int:
        """The address of the job, for a kernel that runs jobs itself."""
        return self._job.address

    def wake(self) -> None:
        """Wake the threads for a kernel that runs jobs itself."""
        self._job.wake()

    def close(self) -> None:
        """Let the threads end."""
        self._stop()


class _Job:
    """The memory that the caller and the threads share, and the condition on which threads sleep."""

    def __init__(self, library: Library) -> None:
        self._memory = ctypes.create_string_buffer(JOB_BYTES + _LINE)
        self.address = -(-addressof(self._memory) // _LINE) * _LINE
        self.serve = library.get(emit_serve)
        self._turn = threading.Condition()
        self._asleep = 0

    def wake(self) -> None:
        # A thread that falls asleep at this moment is not woken; the caller then does its work.
        if self._asleep:
            with self._turn:
                self._turn.notify_all()

    def sleep(self) -> None:
        with self._turn:
            if self._is_stopping():
                return
            self._asleep += 1
            self._turn.wait()
            self._asleep -= 1

    def stop(self) -> None:
        with self._turn:
            ctypes.c_int64.from_address(self.address + STOPPING).value = 1
            self._turn.notify_all()

    def _is_stopping(self) -> bool:
        return bool(ctypes.c_int64.from_address(self.address + STOPPING).value)


def _serve(job: _Job) -> None:
    while not job.serve(job.address, PATIENCE):
        job.sleep()
