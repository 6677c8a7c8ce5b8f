"""Sums over ranks that are processes of one computer, through memory that they share: see `kernels/decoding/sum_kernel.py`.

A rank spins until the others have written their numbers, which is soon if all are as fast. Then it comes here, looks
whether one of them is gone or has given the step up, yields the processor, and after a moment sleeps.
"""

import ctypes
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from ctypes import addressof

from torch import Tensor

from potluck.engine.kernels.called.generated import host_paths
from potluck.engine.kernels.decoding.sum_kernel import (
    BUFFER_BYTES,
    MOST_PIECES,
    OVERWRITTEN,
    RANK_BYTES,
    SharedSum,
    emit_sum,
)
from potluck.engine.kernels.library import address_of, library
from potluck.engine.kernels.paths import host_architecture
from potluck.engine.rank_sums.shared_memory import SharedMemory
from potluck.errors import PeerTimeoutError, RankLostError

AWAKE_S = 0.002  # as ranks that sum over links do
_NAP_S = 0.0001
# Looks at memory before this is asked, which takes some 50 to 100 µs: an x86 processor pauses between two.
_LOOKS = 2_000 if host_architecture() == "x86_64" else 20_000
_YIELD: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def shared_bytes(world: int) -> int:
    """Bytes of memory that so many ranks share."""
    return world * RANK_BYTES


class SharedSums:
    """The sums of one rank. Its `address` is that of a function of the type `SUM`, and `argument` its argument."""

    def __init__(
        self,
        memory: SharedMemory,
        rank: int,
        world: int,
        *,
        look: Callable[[], object],
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        patience_s: float,
    ) -> None:
        """Sum with ranks that have the same memory.

        Args:
            memory: of `shared_bytes`, zeros when the first step begins.
            rank: the own number.
            world: how many ranks there are.
            look: called now and then while others are waited for; raises an error if that is in vain.
            waiting: entered while this rank sleeps.
            patience_s: the longest wait for one piece of a sum.
        """
        assert memory.nbytes >= shared_bytes(world)
        self._memory = memory
        self._look, self._waiting, self._patience_s = look, waiting, patience_s
        self._error: BaseException | None = None
        self._wake: Callable[[], object] = lambda: None
        self._function = library(host_paths()[0].name).get(emit_sum, world)
        self._wait_function = _WAIT(self._wait)
        self._record = SharedSum.structure(
            memory=memory.address,
            rank=rank,
            patience=_LOOKS,
            wait=ctypes.cast(self._wait_function, ctypes.c_void_p).value or 0,
        )
        self.address, self.argument = address_of(self._function), addressof(self._record)

    def begin(self, step: int) -> None:
        """Begin a step, whose number is greater than those of all before."""
        self._record.step, self._record.pieces, self._record.failed = step, 0, 0
        self._error = None

    def sum(self, numbers: Tensor) -> None:
        """Replace numbers of f32, which lie one after the other, by their sums.

        Raises:
            PotluckError: as `check`.
        """
        self._function(self.argument, numbers.data_ptr(), numbers.numel())
        self.check()

    def check(self) -> None:
        """Raise what a sum could not: generated code goes on, with numbers that are of no use.

        Raises:
            PeerTimeoutError: a rank did not come in time.
            RankLostError: others have gone on without this rank, which was too slow for a step that was given up.
            PotluckError: what `look` raised.
        """
        assert self._record.pieces < MOST_PIECES
        if not self._record.failed:
            return
        error, self._error = self._error, None
        if error is None and self._record.failed == OVERWRITTEN:
            self._look()  # which says why, if another rank has said it
        raise error or RankLostError("The other ranks of the group have given this step up.")

    def wakes(self, wake: Callable[[], object]) -> None:
        """Have this called after a longer wait for others: the threads of the kernels have fallen asleep."""
        self._wake = wake

    def _wait(self, rank: int, tag: int) -> int:
        try:
            self._wait_for(rank, tag)
        except BaseException as error:  # noqa: BLE001 - `check` raises it: this is called by generated code
            self._error = error
            return 1
        return 0

    def _wait_for(self, rank: int, tag: int) -> None:
        number, step = self._record.pieces, self._record.step
        buffer = 2 * (step & 1) + (number & 1)
        place = self._memory.address + rank * RANK_BYTES + buffer * BUFFER_BYTES
        written = ctypes.c_int64.from_address(place)
        began = time.perf_counter()
        while written.value != tag:
            self._look()
            if time.perf_counter() > began + AWAKE_S:
                break
            _YIELD()
        else:
            self._wake()
            return
        with self._waiting():
            while written.value != tag:
                time.sleep(_NAP_S)
                self._look()
                if time.perf_counter() > began + self._patience_s:
                    raise PeerTimeoutError(
                        f"No part of a sum came within {self._patience_s:.0f} seconds. A part of the group"
                        " hangs, or is far too slow for it."
                    )
        self._wake()
