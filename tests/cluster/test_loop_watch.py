"""The tests' own detector of what blocks an event loop."""

import asyncio
import gc
import time

from loop_watch import watching


async def compute_for_long() -> None:
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass


def test_a_callback_that_computes_for_long_is_named() -> None:
    with watching(limit_s=0.02) as blocking:
        asyncio.run(compute_for_long())

    assert len(blocking) == 1
    assert "compute_for_long" in blocking[0]


def test_computing_in_a_thread_and_waiting_block_nothing() -> None:
    async def main() -> None:
        await asyncio.to_thread(lambda: asyncio.run(asyncio.sleep(0)))
        await asyncio.sleep(0.03)

    with watching(limit_s=0.02) as blocking:
        asyncio.run(main())

    assert blocking == []


def test_collecting_garbage_is_not_counted() -> None:
    async def main() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.05:
            gc.collect()

    with watching(limit_s=0.02) as blocking:
        asyncio.run(main())

    assert blocking == []
