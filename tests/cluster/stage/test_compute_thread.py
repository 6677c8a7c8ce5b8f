import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest
from fake_cluster import run, until

from potluck.cluster.stage.compute_thread import ComputeThread
from potluck.cluster.stage.scheduler import Group, Scheduler
from potluck.errors import OutOfMemoryError
from potluck.net.reactor import Delivery
from potluck.wire.activation_messages import Forward, TensorHeader
from potluck.wire.cache_messages import ExpectCache


def new_thread(
    run_group: Callable[[Group], None] = lambda _: None,
    *,
    scheduler: Scheduler | None = None,
    die: Callable[[], object] = lambda: None,
) -> ComputeThread:
    return ComputeThread(scheduler or Scheduler(), run_group, die)


def test_what_is_submitted_runs_in_order_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        thread = new_thread()
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
        thread = new_thread()
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
        thread = new_thread()
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
        thread = new_thread()
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
        thread = new_thread()
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


class FakeLink:
    """The near end of a socket pair. Each byte that arrives is a message: a token, or a prompt."""

    is_closed = has_backlog = is_revoked = False

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
        return [(forward(*MEANINGS[byte]), memoryview(b"")) for byte in data]

    def send_backlog(self) -> None: ...
    def close(self) -> None: ...
    def release(self) -> None:
        self.near.close()
        self.far.close()


MEANINGS = {ord("p"): ("prompt", 8), ord("t"): ("a", 1), ord("u"): ("b", 1)}


def forward(session: str, tokens: int) -> Forward:
    tensor = TensorHeader(dtype="I32", shape=(tokens,))
    return Forward(epoch=1, session=session, step=1, position=0, tensor=tensor)


def sessions(group: Group) -> str:
    return " ".join(cast("Forward", member.message).session for member in group.members)


def test_while_it_computes_for_long_its_links_are_served() -> None:
    """What arrives meanwhile is taken in by another thread, and handled here afterwards."""
    handled: list[tuple[str, int]] = []

    async def main() -> None:
        scheduler, link = Scheduler(), FakeLink()
        thread = new_thread(
            lambda group: handled.append((sessions(group), threading.get_ident())),
            scheduler=scheduler,
        )
        thread.start()
        thread.reactor.add(link, partial(scheduler.put, cast("Any", link)))

        def compute() -> int:
            link.far.send(b"ptu")
            assert link.was_read.wait(10)  # by whom, if not by another thread
            return len(handled)

        assert await thread.call(compute) == 0
        await until(lambda: len(handled) == 2)
        assert handled == [("a b", thread.ident), ("prompt", thread.ident)]
        link.release()

    run(main(), timeout_s=20)


def test_the_links_are_served_while_a_chunk_is_computed_and_not_while_a_token_is() -> None:
    """A token that arrives while a chunk is computed goes before the chunk that waits."""
    handled: list[tuple[str, bool]] = []

    async def main() -> None:
        scheduler, link = Scheduler(), FakeLink()

        def compute(group: Group) -> None:
            link.was_read.clear()
            if not handled:
                link.far.send(b"pt")
                assert link.was_read.wait(10)
            handled.append((sessions(group), thread._relief._is_wanted.is_set()))

        thread = new_thread(compute, scheduler=scheduler)
        thread.reactor.add(link, partial(scheduler.put, cast("Any", link)))
        link.far.send(b"p")
        thread.start()
        await until(lambda: len(handled) == 3)
        assert handled == [("prompt", True), ("a", False), ("prompt", True)]
        link.release()

    run(main(), timeout_s=20)


def test_the_links_are_served_while_a_stage_makes_room_for_a_prompt() -> None:
    async def main() -> None:
        scheduler, link, is_served = Scheduler(), FakeLink(), list[bool]()

        def make_room(group: Group) -> None:
            is_served.append(thread._relief._is_wanted.is_set())

        thread = new_thread(make_room, scheduler=scheduler)
        expect = ExpectCache(epoch=1, session="a", step=1, transfer="t", position=0, end=9)
        scheduler.put(cast("Any", link), expect, memoryview(b""))
        thread.start()
        await until(lambda: is_served == [True])
        link.release()

    run(main(), timeout_s=20)


def test_a_token_that_arrives_while_others_are_computed_goes_before_a_chunk_that_waits() -> None:
    handled: list[str] = []

    async def main() -> None:
        scheduler, link = Scheduler(), FakeLink()

        def compute(group: Group) -> None:
            if not handled:
                link.far.send(b"u")  # nobody reads it while a token is computed
            handled.append(sessions(group))

        thread = new_thread(compute, scheduler=scheduler)
        for message in (forward("a", 1), forward("prompt", 8)):
            scheduler.put(cast("Any", link), message, memoryview(b""))
        thread.reactor.add(link, partial(scheduler.put, cast("Any", link)))
        thread.start()
        await until(lambda: len(handled) == 3)
        assert handled == ["a", "b", "prompt"]
        link.release()

    run(main(), timeout_s=20)


def test_work_that_failed_is_in_the_log_and_the_links_are_the_threads_own_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: object = None) -> None:
        raise ValueError("a bug")

    async def main() -> None:
        scheduler = Scheduler()
        scheduler.put(cast("Any", None), forward("prompt", 8), memoryview(b""))
        thread = new_thread(fail, scheduler=scheduler)
        thread.submit(fail)
        thread.start()
        await until(lambda: caplog.text.count("ValueError: a bug") == 2)
        await until(lambda: not thread._relief._is_wanted.is_set())
        assert await thread.call(lambda: 3) == 3

    run(main(), timeout_s=10)


def test_a_process_that_cannot_compute_any_more_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    died = threading.Event()
    thread = new_thread(die=died.set)

    def fail(awake_s: float = 0.0) -> None:
        raise OSError("the selector is broken")

    monkeypatch.setattr(thread.reactor, "turn", fail)
    thread.start()
    assert died.wait(10)
    thread.join(10)
    assert "the selector is broken" in caplog.text
    thread.reactor.close()


def test_a_short_job_may_use_the_scheduler_and_what_it_releases_is_computed() -> None:
    async def main() -> None:
        computed: list[str] = []
        scheduler = Scheduler()
        thread = new_thread(
            lambda group: computed.append(cast("Any", group.members[0].message).session),
            scheduler=scheduler,
        )
        scheduler.hold("a")
        message = Forward(
            epoch=1, session="a", step=1, position=1, tensor=TensorHeader(dtype="I32", shape=(1,))
        )
        scheduler.put(cast("Any", None), message, memoryview(b""))
        thread.start()
        await thread.call(lambda: None)
        assert not computed

        thread.submit_short(lambda: scheduler.release("a"))
        await until(lambda: computed == ["a"])

    run(main())
