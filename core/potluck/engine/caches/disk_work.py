"""Work that is done in turn on the computing thread and on a thread that may wait for a disk.

It is a generator on the computing thread. What it yields is called on the other thread, and the generator goes on with
the result or the error. Meanwhile the computing thread does other things, so what the generator knew may have changed.
"""

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

DiskWork: TypeAlias = Generator[Callable[[], Any], Any, T]


class Disk(Protocol):
    """Has work done, and then calls `done` on the computing thread; with None if the work was given up."""

    def __call__(self, work: DiskWork[T], done: Callable[[T | None], object]) -> None: ...


def at_once(work: DiskWork[T], done: Callable[[T | None], object]) -> None:
    """The `Disk` of who need not go on meanwhile."""
    done(do_now(work))


def do_now(work: DiskWork[T], is_late: Callable[[], bool] = lambda: False) -> T | None:
    """Do all of it on this thread, and return its result. When it is late, it gets a TimeoutError once."""
    was_late = False
    try:
        part = next(work)
        while True:
            try:
                if is_late() and not was_late:
                    was_late = True
                    raise TimeoutError("there was not enough time")
                result = part()
            except Exception as error:  # noqa: BLE001 - the work handles its own errors
                part = work.throw(error)
            else:
                part = work.send(result)
    except StopIteration as end:
        return end.value
