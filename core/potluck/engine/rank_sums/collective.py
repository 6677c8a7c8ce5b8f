"""Sums over ranks that are NVIDIA GPUs of one computer, by `torch.distributed` with NCCL.

Rank 0 makes the communicator's id, which is the path of a file that no other user can open; the ranks find each other
through it. NCCL adds in an order of its own, which may change with the number of rows, though all ranks get what it
added: only the same steps give the same bits, as with anything that is computed on GPUs.
"""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from potluck.errors import EngineError, RankLostError

_FIRST = "communicator-"  # of the name of the file


def new_communicator(folder: Path) -> Path:
    """Make the id of a communicator; the folder is one that only this user can open, and the same for all ranks."""
    return folder / f"{_FIRST}{uuid4().hex}"


class CollectiveExchange:
    """An `Exchange` between processes of one computer."""

    def __init__(
        self,
        communicator: Path,
        rank: int,
        world: int,
        device: torch.device,
        *,
        timeout_s: float,
    ) -> None:
        """Meet the other ranks, and check that the sum of ones is their number.

        Args:
            communicator: the id that rank 0 made.
            rank: of this process.
            world: how many ranks there are.
            device: a GPU; the numbers are on it.
            timeout_s: seconds that a rank waits for the others: here, and in each sum.

        Raises:
            RankLostError: the others did not come in time.
            EngineError: sums are wrong.
        """
        self.rank, self.world = rank, world
        self._device, self._error = device, ""
        self._lock = threading.Lock()
        self._group: Any = None
        try:
            store = dist.FileStore(str(communicator), world)  # pyright: ignore[reportPrivateImportUsage]
            store.set_timeout(timedelta(seconds=timeout_s))
            self._group = _join(store, rank, world, timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error
        self._check()

    def sum(self, rows: Tensor) -> None:
        group = self._group
        if group is None:
            raise RankLostError(self._error)
        try:
            group.allreduce(rows).wait()
        except RuntimeError as error:
            raise self._lost(error) from error

    def sum_memory(self, numbers: memoryview) -> None:
        here = torch.frombuffer(numbers, dtype=torch.float32)
        there = here.to(self._device)
        self.sum(there)
        here.copy_(there)

    @property
    def native(self) -> None:
        return None

    def abort(self) -> None:
        self._end("This rank of the group could not go on.")

    def _check(self) -> None:
        """Refuse a communicator that does not sum."""
        ones = torch.ones(1, 8, device=self._device)
        self.sum(ones)
        if not bool((ones == self.world).all()):
            self._end("The group's sums are wrong.")
            raise EngineError(
                f"The sum of ones over {self.world} ranks is {ones[0, 0].item():g}: these devices cannot"
                " compute together. Use one of them alone.",
                world=self.world,
            )

    def _lost(self, error: Exception) -> RankLostError:
        """Close the communicator, so that the other ranks fail too, and say why."""
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        self._end(
            "Another part of the group that computes these layers together was lost, or did not answer in"
            f" time ({reason})."
        )
        return RankLostError(self._error, rank=self.rank)

    def _end(self, why: str) -> None:
        """Close connections: who waits at their other ends is told by the system, or by its deadline."""
        with self._lock:
            self._error = self._error or why
            group, self._group = self._group, None
        if group is not None:
            group.abort()  # or a sum that waits on the device would do so for ever


def _join(store: Any, rank: int, world: int, timeout: timedelta) -> Any:
    """Join the group of processes; no global one, so that a process may be in a new group after an old one failed."""
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timeout
    return kind(store, rank, world, options)
