"""What ranks of a group do together: they sum what each has computed with its share of a layer.

Every rank adds in the order of the ranks, ((r0 + r1) + r2) + …, in f32. So all have the same bits afterwards, choose
the same experts and the same token, and their caches stay equal. Every rank computes the same steps in the same
chunks, so that its sums are those of the others.
"""

import ctypes
from collections.abc import Callable
from typing import Protocol

from torch import Tensor

_SUM = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class GeneratedSum(Protocol):
    """A function that generated code calls to sum: (an argument, the address of f32, their count)."""

    @property
    def address(self) -> int: ...

    @property
    def argument(self) -> int: ...

    def check(self) -> None:
        """Raise what a call could not: generated code goes on, with numbers that are of no use."""
        ...


class NativeSum(GeneratedSum, Protocol):
    """One that is generated code itself."""

    def wakes(self, wake: Callable[[], object]) -> None:
        """Have this called after a longer wait for others: the threads of the kernels have fallen asleep."""
        ...


class Exchange(Protocol):
    """Sums numbers over the ranks of a group.

    It never waits for ever: a rank that dies, hangs or fails is an error in all others, within a deadline. After an
    error the sums of ranks no longer belong together: none is made before all ranks begin a step anew.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int:
        """How many ranks there are."""
        ...

    def sum(self, rows: Tensor) -> None:
        """Replace (T, D), f32, contiguous and on this rank's device, by the sum over all ranks.

        Raises:
            RankLostError: another rank did not take part.
        """
        ...

    def sum_memory(self, numbers: memoryview) -> None:
        """The same for the bytes of numbers of f32, of one token, without any operator of torch."""
        ...

    @property
    def native(self) -> NativeSum | None:
        """What generated code calls in place of `sum_memory`, if there is such a function now."""
        ...

    def abort(self) -> None:
        """Fail all calls of all ranks, those that wait too: this rank cannot go on. Any thread may call it.

        It does nothing where whoever had the step computed tells the others why it failed.
        """
        ...


class SumCallback:
    """An exchange as a `GeneratedSum`."""

    def __init__(self, exchange: Exchange, wake: Callable[[], None]) -> None:
        """`wake` is called after each sum: the threads of the kernels fall asleep while others are waited for."""
        self.exchange, self._wake = exchange, wake
        self._error: BaseException | None = None
        # By address and count, which come again.
        self._numbers: dict[tuple[int, int], memoryview] = {}
        self._function = _SUM(self._sum)
        self.address: int = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.argument = 0

    def check(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _sum(self, _: int, address: int, count: int) -> None:
        if self._error is not None:
            return
        try:
            numbers = self._numbers.get((address, count))
            if numbers is None:
                memory = (ctypes.c_float * count).from_address(address)
                numbers = self._numbers[address, count] = memoryview(memory).cast("B")
            self.exchange.sum_memory(numbers)
            self._wake()
        except BaseException as error:  # noqa: BLE001 - it is raised by `check`
            self._error = error


def summed(rows: Tensor, exchange: Exchange | None) -> Tensor:
    """(T, D) of this rank → that of all ranks; what comes in may be overwritten."""
    if exchange is None:
        return rows
    numbers = rows.float().contiguous()
    exchange.sum(numbers)
    return numbers.to(rows.dtype)
