"""Measurements on disk: a master that is started again goes on without measuring anew."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from potluck.files import recall, remember
from potluck.ids import NodeId
from potluck.model.schemes import Cache, Scheme
from potluck.plan.cost import HopCost, LinkCost
from potluck.wire.measuring_messages import Profiled

MAX_AGE_S = 86_400.0  # a day; older measurements are made again
_MOST = 1000  # of profiles, of links, and of sums: the newest are kept


class KeptProfile(Struct, frozen=True, kw_only=True):
    """The profile of a device for layers of one shape."""

    node_id: NodeId
    shape: str
    scheme: Scheme
    cache: Cache
    profile: Profiled
    at: float  # when it was measured, in seconds since 1970
    name: str = ""  # of the computer
    read_bytes: int = 0  # of weights that a token reads in one layer of each kind


class KeptLink(Struct, frozen=True, kw_only=True):
    """The cost of the link from one computer to another."""

    source: NodeId
    target: NodeId
    cost: LinkCost
    in_passing: bool
    at: float  # when it was measured, in seconds since 1970


class KeptSum(Struct, frozen=True, kw_only=True):
    """What a sum of two ranks takes, on these computers."""

    source: NodeId
    target: NodeId
    cost: HopCost
    at: float  # when it was measured, in seconds since 1970


class _Kept(Struct, frozen=True, kw_only=True):
    """The content of the file."""

    measured_as: str
    profiles: tuple[KeptProfile, ...]
    links: tuple[KeptLink, ...]
    sums: tuple[KeptSum, ...] = ()


class KeptMeasurements:
    """The file of the measurements.

    Args:
        file: which is replaced as a whole; None: nothing is kept.
        measured_as: what the measurements depend on besides their keys, such as the version of the
            program. A file that says something else counts as empty.
        now: the time of day, in seconds since 1970.
    """

    def __init__(
        self, file: Path | None, *, measured_as: str = "", now: Callable[[], float] = time.time
    ) -> None:
        self._file = file
        self._measured_as = measured_as
        self.now = now

    def recall(self) -> tuple[tuple[KeptProfile, ...], tuple[KeptLink, ...], tuple[KeptSum, ...]]:
        """The profiles, links and sums that are not too old. Nothing if the file cannot be read."""
        kept = recall(self._file, _Kept) if self._file is not None else None
        if kept is None or kept.measured_as != self._measured_as:
            return (), (), ()
        profiles = (each for each in kept.profiles if self._is_recent(each.at))
        links = (each for each in kept.links if self._is_recent(each.at))
        sums = (each for each in kept.sums if self._is_recent(each.at))
        return tuple(profiles), tuple(links), tuple(sums)

    def remember(
        self,
        profiles: Iterable[KeptProfile],
        links: Iterable[KeptLink],
        sums: Iterable[KeptSum],
    ) -> None:
        """Replace what the file holds. A full disk is logged, and no error."""
        if self._file is None:
            return
        kept = _Kept(
            measured_as=self._measured_as,
            profiles=tuple(sorted(profiles, key=lambda each: each.at)[-_MOST:]),
            links=tuple(sorted(links, key=lambda each: each.at)[-_MOST:]),
            sums=tuple(sorted(sums, key=lambda each: each.at)[-_MOST:]),
        )
        remember(self._file, kept)

    def _is_recent(self, at: float) -> bool:
        return 0 <= self.now() - at < MAX_AGE_S  # the clock may have been set back meanwhile
