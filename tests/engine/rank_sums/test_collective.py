"""Sums by NCCL, on a computer with an NVIDIA GPU; with one, a group is of one rank."""

import struct
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from potluck.engine.rank_sums.collective import CollectiveExchange, new_communicator
from potluck.errors import RankLostError

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="there is no NVIDIA GPU"
)


def exchange(folder: Path, world: int, timeout_s: float) -> CollectiveExchange:
    device = torch.device("cuda", 0)
    return CollectiveExchange(new_communicator(folder), 0, world, device, timeout_s=timeout_s)


def test_a_rank_that_nobody_meets_does_not_wait_for_ever(tmp_path: Path) -> None:
    with pytest.raises(RankLostError, match="did not answer in time"):
        exchange(tmp_path, 2, 0.2)


def test_a_group_of_one_sums_alone(tmp_path: Path) -> None:
    alone = exchange(tmp_path, 1, 5)
    rows = torch.randn(3, 5, device="cuda")
    given = rows.clone()

    alone.sum(rows)
    numbers = bytearray(struct.pack("2f", 1.5, -2.0))
    alone.sum_memory(memoryview(numbers))

    assert torch.equal(rows, given)
    assert struct.unpack("2f", numbers) == (1.5, -2.0)
    alone.abort()
    with pytest.raises(RankLostError):
        alone.sum(rows)
