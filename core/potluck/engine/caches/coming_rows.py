"""One part of a cache while it comes from other stages: how far each of its heads is, and where its rows are written.

A stage with whole layers may get some heads of a layer from each rank of a group, which are not equally far meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.engine.caches.moved_parts import MovedPart, Run
from potluck.errors import InvalidStepError

_MOST = 4096  # runs of lanes that are not equally far; ranks send a few long ones each


@dataclass(slots=True)
class _Reached:
    """Neighbouring lanes that are equally far."""

    run: Run
    following: int | None  # the next unit; None: whatever comes first
    first: int = 0  # the unit that came first


class Coming:
    """The units of a part that come.

    Args:
        part: of a cache that has room for them.
        begin: tokens that are there already. Where there are some, units that would replace theirs wait in memory of their own.
        end: the position after the last token that comes.
    """

    def __init__(self, part: MovedPart, begin: int, end: int) -> None:
        self._part, self._end = part, end
        self._apart: Tensor | None = None
        if begin and not part.is_streamed:
            self._apart = torch.empty_like(part.memory[:, :, : part.rows_apart(end)])
        following = part.units(begin) if part.is_streamed else None
        self._reached = [_Reached(run, following) for run in part.runs]
        self._begin = part.begin if part.is_streamed else None  # the unit of the first row

    @property
    def is_whole(self) -> bool:
        """Whether all of them have come."""
        return all(one.following == self._part.units(self._end) for one in self._reached)

    @property
    def has_enough(self) -> bool:
        """Whether they are all that is needed behind them."""
        return self._part.has_enough(self._first, self._end)

    @property
    def _first(self) -> int:
        """The first unit that all lanes have."""
        return max((one.first for one in self._reached), default=0)

    def write(self, layer: int, lane: int, first: int, rows: Tensor) -> None:
        """Write some of them.

        Args:
            layer: number of the layer that they are of, for errors.
            lane: number of the first lane in the whole layer.
            first: number of the first unit.
            rows: laid out as the part's memory.

        Raises:
            InvalidStepError: they are not what comes next.
        """
        part, stop = self._part, first + rows.shape[2]
        reached = self._split(lane, lane + rows.shape[part.axis], layer)
        is_next = all(one.following in (None, first) for one in reached)
        if not is_next or stop > part.units(self._end):
            raise InvalidStepError(f"Rows of layer {layer} came that are not the next ones.")
        begin = first if self._begin is None else self._begin
        known = min(max(first, begin), stop)  # what is before it, others do not have
        memory = part.memory if self._apart is None else self._apart
        copies: list[tuple[Tensor, Tensor]] = []
        for one in reached:
            target = part.place(memory, one.run, known, stop, begin)
            source = rows.narrow(part.axis, one.run.whole - lane, one.run.size)
            source = source[:, :, known - first :]
            if target.shape != source.shape:
                raise InvalidStepError(
                    f"Layer {layer} is cached as {list(target.shape)} here, and {list(source.shape)} came."
                )
            copies.append((target, source))
        for target, source in copies:
            target.copy_(source)
        for one in reached:
            one.first = first if one.following is None else one.first
            one.following = stop
        self._begin = begin
        self._reached = list(_joined(self._reached))

    def hold(self) -> None:
        """Have the cache hold them."""
        part = self._part
        if self._apart is not None:
            part.memory[:, :, : self._apart.shape[2]].copy_(self._apart)
        part.hold(self._begin or 0, self._first, self._end)

    def _split(self, first: int, stop: int, layer: int) -> list[_Reached]:
        """These lanes, apart from the others.

        Raises:
            InvalidStepError: the stage does not have them.
        """
        inside, everything = list[_Reached](), list[_Reached]()
        for one in self._reached:
            end = one.run.whole + one.run.size
            for begin, until in ((one.run.whole, first), (first, stop), (stop, end)):
                if (run := one.run.part(begin, until)).size:
                    everything.append(_Reached(run, one.following, one.first))
                    if begin == first and until == stop:
                        inside.append(everything[-1])
        if len(everything) > _MOST:
            raise InvalidStepError(f"Layer {layer} comes in too many parts.")
        if sum(one.run.size for one in inside) != stop - first:
            raise InvalidStepError(
                f"Rows of layer {layer} came of heads that this stage does not have."
            )
        self._reached = everything
        return inside


def _joined(reached: Sequence[_Reached]) -> Iterator[_Reached]:
    """The same, of which neighbours that are equally far are one."""
    last = reached[0]
    for one in reached[1:]:
        run = last.run
        ends = run.whole + run.size, run.here + run.size, last.following, last.first
        if ends == (one.run.whole, one.run.here, one.following, one.first):
            last = _Reached(run._replace(size=run.size + one.run.size), last.following, last.first)
        else:
            yield last
            last = one
    yield last
