"""A lower bound for the time of the rest of a route, whichever devices follow.

The remaining layers are divided like a liquid over the remaining devices. The fastest device is
filled first, up to the most that any of its ranges holds, and so on. The hop to a device costs in
proportion to how full the device is. No route is faster, since a route has whole layers and whole
hops. (Where some of the devices are groups of others, all are filled, as if they did not exclude each other.)
The size of a layer may be measured in any unit. Bytes are exact for memory, and the mean time
over all devices is good for speed, so both bounds are computed and the larger one counts. If all
layers are equal, the two bounds are equal.
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
            sizes.append(mean + mean.max() / 1000)  # no layer has size 0
        hop_ms = (np.array(problem.hop_ms) + np.diag([inf] * problem.size)).min(axis=0)
        entering_ms = np.minimum(hop_ms, problem.enter_ms)
        self._out_ms = np.add(problem.head_ms, problem.leave_ms)
        self._masks = problem.masks
        self._pourings = [_Pouring(problem, times, size, hop_ms) for size in sizes]
        nobody = np.zeros(1, dtype=np.int64)
        wholes = [_Pouring(problem, times, size, entering_ms)(nobody)[0, 0] for size in sizes]
        self.whole_ms = float(max(wholes) + self._out_ms.min())  # the bound for any route

    def of(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """The least time of the rest of a route after each set of devices.

        Returns:
            Milliseconds (L + 1, S), by number of layers computed so far and by set; inf if no
            device can follow.
        """
        out_ms = np.full(sets.shape, inf)
        for mask, ms in zip(self._masks, self._out_ms, strict=True):
            np.minimum(out_ms, np.where(sets & mask, inf, ms), out=out_ms)
        rest_ms = np.maximum.reduce([pouring(sets) for pouring in self._pourings]) + out_ms
        rest_ms[-1] = inf  # no layers are left, and a device that follows has at least one
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
        self._devices: list[tuple[float, float, int]] = []  # ms per unit, units, bits of the device
        for i, span in enumerate(problem.spans):
            room = float((filled[list(span.reach)] - filled[:-1]).max())
            if room > 0 and hop_ms[i] < inf:
                self._devices.append(
                    ((times[i] / size).min() + hop_ms[i] / room, room, problem.masks[i])
                )
        self._devices.sort()

    def __call__(self, sets: NDArray[np.int64]) -> NDArray[np.float64]:
        """The least time (L + 1, S) for the remaining layers and hops; inf if there is no room."""
        ms = np.zeros((self._left.size, sets.size))
        left = np.repeat(self._left[:, None], sets.size, axis=1)
        for ms_per_unit, room, mask in self._devices:
            taken = np.minimum(left, np.where(sets & mask, 0.0, room))
            left -= taken
            ms += taken * ms_per_unit
        ms[left > self._left[0] * 1e-9] = inf  # more is left than rounding explains
        return ms
