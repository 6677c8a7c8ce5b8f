"""Sums over ranks that are NVIDIA GPUs of one computer, by `torch.distributed` with NCCL.

Rank 0 makes the communicator's id: a folder that no other user can open, in which the ranks find each other. NCCL adds in
an order of its own, which may change with the number of rows, though all ranks get what it added: only the same steps give
the same bits, as with anything that is computed on GPUs.

This has never run on several GPUs: tests run all of it but NCCL itself, with gloo in its place.
"""

import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from potluck.errors import EngineError, RankLostError

_FIRST = "potluck-communicator-"  # of the name of the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How the ranks of one computer move numbers between devices like this one."""

    device: torch.device
    join: Callable[[Any, int, int, timedelta], Any]
    """Makes a group of processes of a store, the rank, the number of ranks, and how long each waits for the others."""


def transport_of(device: torch.device) -> Transport | None:
    """NCCL between NVIDIA GPUs; None: this device sums in the computer's memory, or over connections."""
    if device.type != "cuda" or not dist.is_available() or not dist.is_nccl_available():
        return None
    return Transport(device=device, join=_join_nccl)


def new_communicator() -> str:
    """Make the id of a communicator, which rank 0 tells the others. `end_communicator` it when all have met."""
    token = token_hex(16)
    _folder(token).mkdir(mode=0o700)
    return token


def end_communicator(token: str) -> None:
    """Remove what the ranks have found each other by. Those that have met go on."""
    rmtree(_folder(token), ignore_errors=True)


class CollectiveExchange:
    """Sums between processes of one computer."""

    def __init__(
        self, communicator: str, rank: int, world: int, transport: Transport, *, timeout_s: float
    ) -> None:
        """Meet the other ranks, and check that the sum of ones is their number.

        Args:
            communicator: the id that rank 0 made.
            rank: of this process.
            world: how many ranks there are.
            transport: of the device on which the numbers are.
            timeout_s: seconds that a rank waits for the others: here, and in each sum.

        Raises:
            RankLostError: the others did not come in time.
            EngineError: sums are wrong, or the id is another user's.
        """
        self.rank, self.world = rank, world
        self._device, self._error = transport.device, ""
        self._lock = threading.Lock()
        self._group: Any = None
        timeout = timedelta(seconds=timeout_s)
        try:
            store = dist.FileStore(str(_checked(communicator) / "store"), world)  # pyright: ignore[reportPrivateImportUsage]
            store.set_timeout(timeout)
            self._group = transport.join(store, rank, world, timeout)
        except (RuntimeError, ValueError) as error:
            raise self._lost(error) from error
        self._check()

    def sum(self, rows: Tensor, look: Callable[[], object] = lambda: None) -> None:
        """Replace rows by the sum of all ranks' rows; `look` is called while others are waited for.

        Raises:
            RankLostError: another rank is lost, or did not come in time. Nothing is summed any more.
            PotluckError: what `look` raises. Nothing is summed any more.
        """
        group = self._group
        if group is None:
            raise RankLostError(self._error)
        try:
            work = group.allreduce(rows)
            while not work.is_completed():
                look()
                time.sleep(0)
            work.wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        except BaseException:
            self.abort()
            raise

    def sum_memory(self, numbers: memoryview, look: Callable[[], object] = lambda: None) -> None:
        here = torch.frombuffer(numbers, dtype=torch.float32)
        there = here.to(self._device)
        self.sum(there, look)
        here.copy_(there)

    def abort(self) -> None:
        """Close the communicator: the other ranks cannot sum any more either. Any thread may call it."""
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
        if group is not None and hasattr(group, "abort"):
            group.abort()  # or a sum that waits on the device would do so for ever


def _join_nccl(store: Any, rank: int, world: int, timeout: timedelta) -> Any:
    """Join the group of processes; no global one, so that a process may be in a new group after an old one failed."""
    kind: Any = dist.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = timeout
    return kind(store, rank, world, options)


def _checked(token: str) -> Path:
    """The folder of a communicator, if it is this user's own.

    Raises:
        EngineError: it is not there, or is another's.
    """
    folder = _folder(token)
    try:
        found = folder.lstat()
    except OSError:
        found = None
    is_own = found is not None and stat.S_ISDIR(found.st_mode)
    if is_own and hasattr(os, "geteuid"):
        assert found is not None
        is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    if not is_own:
        raise EngineError("What another process names is no communicator of this user.")
    return folder


def _folder(token: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{_FIRST}{token}"
