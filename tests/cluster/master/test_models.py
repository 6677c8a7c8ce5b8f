"""Models are read beside the event loop, and no longer than somebody waits for them."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import until
from model_folders import make_folder, tensors_of

from potluck.cluster.master.models import reading
from potluck.store import digests
from potluck.store.registry import THREADS

DEADLINE_S = 10.0


class Hashing:
    """Says when a tensor is hashed: one for each permit, and all that are left once the pool shuts down."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.hashed = 0  # tensors

    def pool(self, threads: int, **options: Any) -> ThreadPoolExecutor:
        permits, hash_one = self.permits, self._hash_one

        class Pool(ThreadPoolExecutor):
            def submit(self, fn: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
                return super().submit(hash_one, fn, *given, **named)

            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
                super().shutdown(wait=False, cancel_futures=cancel_futures)
                permits.release(1000)
                super().shutdown(wait=wait)

        return Pool(threads, **options)

    def _hash_one(self, work: Callable[..., Any], *given: Any) -> Any:
        if not self.permits.acquire(timeout=DEADLINE_S):
            raise TimeoutError("the hashing was neither let go on nor ended")
        self.hashed += 1
        return work(*given)


def test_reading_that_nobody_waits_for_any_more_ends_at_the_next_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a model of 40 GB would be hashed to its end, and the node would wait for that to end."""
    folder, hashing, heard = make_folder(tmp_path / "model"), Hashing(), list[int]()
    monkeypatch.setattr(digests, "ThreadPoolExecutor", hashing.pool)
    read = reading(tmp_path / "cache")

    async def main() -> None:
        task = asyncio.ensure_future(read(folder, lambda done, _total: heard.append(done)))
        await until(
            lambda: heard
        )  # nothing is hashed before this, so the event loop is not blocked
        task.cancel()
        await asyncio.wait([task])
        hashing.permits.release()
        await asyncio.get_running_loop().shutdown_default_executor()

        assert task.cancelled()

    asyncio.run(main())

    assert heard == [0]
    assert hashing.hashed <= 1 + THREADS < len(tensors_of())  # those that had begun
