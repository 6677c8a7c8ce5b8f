"""Sums on devices. Gloo stands in for NCCL, which needs two GPUs: all else is the code that these would run."""

import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import GLOO

from potluck.engine.rank_sums import collective
from potluck.engine.rank_sums.collective import (
    CollectiveExchange,
    Transport,
    end_communicator,
    new_communicator,
    transport_of,
)
from potluck.errors import EngineError, PeerLostError, RankLostError

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch has no gloo here")


@pytest.fixture
def communicator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(collective.tempfile, "gettempdir", lambda: str(tmp_path))
    token = new_communicator()
    yield token
    end_communicator(token)
    assert not list(tmp_path.iterdir())


def together(world: int, work: Callable[[int], Any]) -> list[Any]:
    """What each rank gives, all of which work at the same time."""
    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(work, range(world)))


def test_all_ranks_get_the_sum_of_rows_and_of_the_bytes_of_one_token(communicator: str) -> None:
    def work(rank: int) -> tuple[list[list[float]], tuple[float, ...]]:
        exchange = CollectiveExchange(communicator, rank, 3, GLOO, timeout_s=20)
        rows = torch.full((2, 2), 1.0 + rank)
        exchange.sum(rows)
        numbers = bytearray(struct.pack("2f", 1.5, -rank))
        exchange.sum_memory(memoryview(numbers))
        return rows.tolist(), struct.unpack("2f", numbers)

    assert together(3, work) == [([[6.0, 6.0]] * 2, (4.5, -3.0))] * 3


def test_a_rank_that_nobody_meets_does_not_wait_for_ever(communicator: str) -> None:
    with pytest.raises(RankLostError, match="was lost, or did not answer in time"):
        CollectiveExchange(communicator, 0, 2, GLOO, timeout_s=0.2)


def test_who_waits_in_a_sum_for_a_rank_that_does_not_come_fails_in_time_and_so_does_what_follows(
    communicator: str,
) -> None:
    has_failed = threading.Event()

    def work(rank: int) -> None:
        exchange = CollectiveExchange(communicator, rank, 2, GLOO, timeout_s=2)
        if rank:
            has_failed.wait(20)
            return
        for _ in range(2):
            with pytest.raises(RankLostError):
                exchange.sum(torch.ones(1, 4))
        has_failed.set()

    together(2, work)


def test_who_waits_in_a_sum_hears_at_once_that_another_rank_is_gone(communicator: str) -> None:
    has_failed = threading.Event()

    def look() -> None:
        raise PeerLostError("Rank 1 is gone.")

    def work(rank: int) -> None:
        exchange = CollectiveExchange(communicator, rank, 2, GLOO, timeout_s=60)
        if rank:
            has_failed.wait(20)
            return
        with pytest.raises(PeerLostError):
            exchange.sum(torch.ones(1, 4), look)
        with pytest.raises(RankLostError, match="could not go on"):
            exchange.sum(torch.ones(1, 4))
        has_failed.set()

    together(2, work)


def test_devices_whose_sum_of_ones_is_wrong_do_not_compute_together(communicator: str) -> None:
    class Idle:
        """It leaves all rows as they are."""

        def allreduce(self, rows: torch.Tensor) -> "Idle":
            return self

        def is_completed(self) -> bool:
            return True

        def wait(self) -> None:
            pass

    transport = Transport(device=GLOO.device, join=lambda *_: Idle())
    with pytest.raises(EngineError, match="The sum of ones over 2 ranks is 1"):
        CollectiveExchange(communicator, 0, 2, transport, timeout_s=5)


@pytest.mark.parametrize("kind", ["missing", "a file", "open to others"])
def test_a_communicator_that_is_not_this_users_alone_is_refused(
    communicator: str, kind: str
) -> None:
    token = "ab" * 16
    folder = collective._folder(token)
    match kind:
        case "a file":
            folder.touch()
        case "open to others":
            folder.mkdir(mode=0o777)
            folder.chmod(0o777)
        case _:
            pass
    with pytest.raises(EngineError, match="no communicator of this user"):
        CollectiveExchange(token, 0, 1, GLOO, timeout_s=5)
    end_communicator(token)
    folder.unlink(missing_ok=True)


def test_only_nvidia_gpus_sum_on_their_devices() -> None:
    assert transport_of(torch.device("cpu")) is None
    assert transport_of(torch.device("mps")) is None
    found = transport_of(torch.device("cuda", 0))
    assert (found is not None) == dist.is_nccl_available()
