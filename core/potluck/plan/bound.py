"""A lower bound: the time that the rest of a route takes at least, whichever devices follow.

The rest of the layers is poured like water over the devices that are left: the fastest first, each
filled to the most that any of its ranges holds. A device is paid for the hop to it in proportion to how
full it is. No route is faster, since it holds whole layers and pays whole hops. A layer may be measured
in any unit; bytes are exact for memory, the mean time of all devices for speed, and the larger of the
two bounds counts. Where all layers are equal they are the same.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from potluck.plan.route import Problem


class RestBound:
    """The bound for one problem, for any number of sets of devices at once."""

    def __init__(self, problem: Problem) -> None:
        times = np.array([np.diff(span.ms) for span in problem.spans])  # (N, L)
        sizes = [np.diff(np.array(problem.held, dtype=np.float64))]
        if (mean := times.mean(axis=0)).any():
            sizes.append(mean + mean.max() / 1000)  # no layer is for nothing
        hop_ms = (np.array(problem.hop_ms) + np.diag([inf] * problem.size)).min(axis=0)
        entering_ms = np.minimum(hop_ms, problem.enter_ms)
        self._out_ms = np.add(problem.head_ms, problem.leave_ms)
        self._pourings = [_Pouring(problem, times, size, hop_ms) for size in sizes]
        nobody = np.zeros(1, dtype=np.int64)
        wholes = [_Pouring(problem, times, size, entering_ms)(nobody)[0, 0] for size in sizes]
        self.whole_ms = float(max(wholes) + self._out_ms.min())  # the bound for any route

    def of(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """What must still follow on sets of devices that have computed so many layers.

        Returns:
            Milliseconds (L + 1, S) by number of layers and set; inf where nothing can follow.
        """
        out_ms = np.full(sets.shape, inf)
        for i, ms in enumerate(self._out_ms):
            np.minimum(out_ms, np.where(sets >> i & 1, inf, ms), out=out_ms)
        rest_ms = np.maximum.reduce([pouring(sets) for pouring in self._pourings]) + out_ms
        rest_ms[-1] = inf  # a device that follows has one layer at least
        return rest_ms


class _Pouring:
    """The bound with the layers measured in one unit."""

    def __init__(
        self,
        problem: Problem,
        times: NDArray[np.float64],
        size: NDArray[np.float64],
        hop_ms: NDArray[np.float64],
    ) -> None:
        filled = np.concatenate([[0.0], np.cumsum(size)])
        self._left = filled[-1] - filled  # (L + 1,)
        self._devices: list[tuple[float, float, int]] = []  # milliseconds a unit, units, device
        for i, span in enumerate(problem.spans):
            room = float((filled[list(span.reach)] - filled[:-1]).max())
            if room > 0 and hop_ms[i] < inf:
                self._devices.append(((times[i] / size).min() + hop_ms[i] / room, room, i))
        self._devices.sort()

    def __call__(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """The least time (L + 1, S) for the layers and hops that are left; inf without room."""
        ms = np.zeros((self._left.size, sets.size))
        left = np.repeat(self._left[:, None], sets.size, axis=1)
        for ms_per_unit, room, i in self._devices:
            taken = np.minimum(left, np.where(sets >> i & 1, 0.0, room))
            left -= taken
            ms += taken * ms_per_unit
        ms[left > self._left[0] * 1e-9] = inf  # but for rounding
        return ms
