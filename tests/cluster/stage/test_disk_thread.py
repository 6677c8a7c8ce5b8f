"""What waits for the disk is given up in time, and never waited for by who computes."""

import threading
from collections.abc import Callable, Generator
from queue import Queue
from typing import Any

from potluck.cluster.stage.disk_thread import DiskThread

Part = Callable[[], Any]


class Computing:
    """Stands in for the computing thread: it is the thread of the test."""

    def __init__(self, late_s: float = 60.0) -> None:
        self.jobs: Queue[Callable[[], None]] = Queue()
        self.disk = DiskThread(self.jobs.put, late_s)
        self.results: list[object] = []

    def do(self, work: Generator[Part, Any, Any]) -> None:
        self.disk(work, self.results.append)

    def wait(self, results: int = 1) -> list[object]:
        while len(self.results) < results:
            self.jobs.get(timeout=10)()
        return self.results


def adds(*numbers: int) -> Generator[Part, Any, int]:
    total = 0
    for number in numbers:
        total += yield lambda number=number: number
    return total


def test_parts_are_done_on_another_thread_and_the_rest_on_this_one() -> None:
    threads: list[int] = []

    def work() -> Generator[Part, Any, None]:
        threads.append(threading.get_ident())
        threads.append((yield threading.get_ident))
        threads.append(threading.get_ident())

    computing = Computing()
    computing.do(work())
    computing.wait()

    first, part, last = threads
    assert first == last == threading.get_ident() != part


def test_several_works_go_on_side_by_side() -> None:
    computing = Computing()
    computing.do(adds(1, 2, 3))
    computing.do(adds(10))
    assert computing.wait(2) == [10, 6]


def test_the_error_of_a_part_comes_to_the_work() -> None:
    def fail() -> None:
        raise OSError("no disk")

    def work(*, handles: bool) -> Generator[Part, Any, str]:
        try:
            yield fail
        except OSError as error:
            if handles:
                return str(error)
            raise
        return "no error"

    computing = Computing()
    computing.do(work(handles=True))
    computing.do(work(handles=False))
    assert computing.wait(2) == ["no disk", None]


def test_a_disk_that_hangs_is_waited_for_once_and_then_not_before_it_works_again() -> None:
    may_go_on, is_asked, was_closed = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        is_asked.set()
        may_go_on.wait()

    def work() -> Generator[Part, Any, str]:
        try:
            yield hang
        finally:
            was_closed.set()
        return "too late"

    computing = Computing(late_s=0.05)
    computing.do(work())
    assert computing.wait() == [None]
    assert is_asked.is_set()
    assert was_closed.is_set()
    computing.do(adds(1))
    assert computing.results == [None, None]

    may_go_on.set()
    computing.jobs.get(timeout=10)()  # what came too late changes nothing
    computing.do(adds(1, 2))
    assert computing.wait(3) == [None, None, 3]
