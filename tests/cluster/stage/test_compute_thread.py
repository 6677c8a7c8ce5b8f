import asyncio
import gc
import socket
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress

import pytest
from fake_cluster import run

from potluck.cluster.stage.compute_thread import ComputeThread
from potluck.errors import OutOfMemoryError
from potluck.net.reactor import Delivery
from potluck.wire.messages import Attach


def test_what_is_submitted_runs_in_order_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        for number in range(5):
            thread.submit(lambda number=number: seen.append((number, threading.get_ident())))
        assert await thread.call(lambda: len(seen)) == 5

        assert [number for number, _ in seen] == list(range(5))
        assert {ident for _, ident in seen} == {thread.ident}

    run(main())


def test_what_a_function_raises_is_raised_where_it_is_awaited() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        with pytest.raises(ValueError, match="no"):
            await thread.call(fail)
        assert await thread.call(lambda: 3) == 3

    run(main())


def test_what_a_function_held_that_failed_is_free_once_its_error_was_heard() -> None:
    """Not only when the garbage is collected: it may be most of a GPU."""

    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    def load() -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        raise OutOfMemoryError("There is no room.")

    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        gc.collect()
        gc.disable()
        try:
            with suppress(OutOfMemoryError):
                await thread.call(load)
            await thread.call(lambda: None)  # the thread has let go of what came before
            assert held[0]() is None
        finally:
            gc.enable()

    run(main())


def test_what_is_cancelled_before_its_turn_is_not_run_and_the_next_one_is() -> None:
    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        is_busy, may_go_on = threading.Event(), threading.Event()
        ran: list[str] = []

        def busy() -> None:
            is_busy.set()
            may_go_on.wait()

        first = asyncio.create_task(thread.call(busy))
        second = asyncio.create_task(thread.call(lambda: ran.append("cancelled")))
        await asyncio.to_thread(is_busy.wait)
        second.cancel()
        await asyncio.wait([second])
        may_go_on.set()
        await first
        await thread.call(lambda: ran.append("next"))

        assert ran == ["next"]

    run(main(), timeout_s=10)


def test_what_is_cancelled_while_it_runs_leaves_the_thread_alive() -> None:
    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        is_busy, may_go_on = threading.Event(), threading.Event()

        def busy() -> None:
            is_busy.set()
            may_go_on.wait()

        running = asyncio.create_task(thread.call(busy))
        await asyncio.to_thread(is_busy.wait)
        running.cancel()
        await asyncio.wait([running])
        may_go_on.set()

        assert await thread.call(lambda: 3) == 3

    run(main(), timeout_s=10)


def test_while_it_computes_for_long_its_links_are_served() -> None:
    """What arrives meanwhile is taken in by another thread, and handled here afterwards, in order."""
    handled: list[tuple[str, int | None]] = []

    class Link:
        is_closed = has_backlog = False

        def __init__(self) -> None:
            self.near, self.far = socket.socketpair()
            self.near.setblocking(False)
            self.was_read = threading.Event()

        def fileno(self) -> int:
            return self.near.fileno()

        def read(self) -> list[Delivery]:
            try:
                data = self.near.recv(100)
            except BlockingIOError:
                return []
            self.was_read.set()
            return [(Attach(epoch=number), memoryview(b"")) for number in data]

        def send_backlog(self) -> None: ...
        def close(self) -> None: ...
        def release(self) -> None: ...

    async def main() -> None:
        thread, link = ComputeThread(), Link()
        thread.start()
        thread.reactor.add(
            link, lambda message, _: handled.append((str(message), threading.get_ident()))
        )

        def compute() -> int:
            link.far.send(bytes([1, 2]))
            assert link.was_read.wait(10)  # by whom, if not by another thread
            return len(handled)

        assert await thread.call(compute) == 0
        assert await thread.call(lambda: len(handled)) == 2
        assert handled == [(str(Attach(epoch=n)), thread.ident) for n in (1, 2)]
        link.near.close()
        link.far.close()

    run(main(), timeout_s=20)


def test_after_a_job_that_failed_the_links_are_its_own_again() -> None:
    def fail() -> None:
        raise ValueError("a bug")

    async def main() -> None:
        thread = ComputeThread()
        thread.start()
        thread.submit(fail)
        relieved: Future[bool] = Future()
        thread.reactor.put(lambda: relieved.set_result(thread._relief._is_wanted.is_set()))
        assert not await asyncio.wrap_future(relieved)
        assert await thread.call(lambda: 3) == 3

    run(main(), timeout_s=10)


def test_a_process_that_cannot_compute_any_more_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    died = threading.Event()
    thread = ComputeThread(died.set)

    def fail(awake_s: float = 0.0) -> None:
        raise OSError("the selector is broken")

    monkeypatch.setattr(thread.reactor, "turn", fail)
    thread.start()
    assert died.wait(10)
    thread.join(10)
    assert "the selector is broken" in caplog.text
    thread.reactor.close()
