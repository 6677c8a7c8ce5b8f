"""The links between computers: measured for each pair, kept, and corrected by what transfers take.

A link is measured at each of the target's addresses, and the best one counts. An old measurement is
made again, and so is that of a pair whose addresses are others. The rates of real transfers are kept
beside the measurement as ratios to it, so that no ratio depends on an earlier one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from potluck.cluster.computer import Computer
from potluck.cluster.master.kept import KeptLink
from potluck.errors import PotluckError, UnreachableError
from potluck.ids import NodeId
from potluck.plan.correction import Correction
from potluck.plan.cost import LinkCost
from potluck.plan.deviation import has_changed
from potluck.wire.messages import Address

logger = logging.getLogger(__name__)

FAILED_AGE_S = 60.0  # a pair that could not be measured is tried again after this time
LINK_AGE_S = 900.0  # then a link is measured again: a laptop may have moved to another room
_Offered: TypeAlias = tuple[frozenset[Address], frozenset[Address]]
_Pair: TypeAlias = tuple[NodeId, NodeId]


@dataclass(frozen=True, slots=True)
class _KnownLink:
    """A measured link, and its correction by the rates of real transfers."""

    cost: LinkCost
    when: float  # seconds of the clock; if it was measured by a node before, this node's start
    at: float  # when it was measured, in seconds since 1970
    in_passing: bool  # measured just after its computer came, when both ends were busy starting
    correction: Correction = field(default_factory=Correction)

    def corrected(self, now: float) -> LinkCost:
        factor = self.correction.factor(now)
        return replace(self.cost, bytes_per_s=self.cost.bytes_per_s * factor)


class Links:
    """Measures the links of pairs of computers, and remembers the results.

    Args:
        clock: its seconds count from any moment.
        date: the time of day, in seconds since 1970.
        changed: called when a link was measured.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        date: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._date = date
        self._changed = changed
        self._known: dict[_Pair, _KnownLink] = {}
        self._failed: dict[_Pair, float] = {}  # when
        self._offered: dict[_Pair, _Offered] = {}  # when it was measured
        self._measuring = asyncio.Lock()

    # --- on disk

    def recall(self, links: Iterable[KeptLink]) -> None:
        """Take over what a node before has measured."""
        for link in links:
            known = _KnownLink(link.cost, self._clock(), link.at, link.in_passing)
            self._known[link.source, link.target] = known

    def kept(self) -> Iterable[KeptLink]:
        """What the next node takes over: the measurements, without corrections."""
        return (
            KeptLink(
                source=source,
                target=target,
                cost=known.cost,
                in_passing=known.in_passing,
                at=known.at,
            )
            for (source, target), known in self._known.items()
        )

    # --- what is known

    def known(self) -> dict[_Pair, LinkCost]:
        """The cost of each link that was measured, however long ago."""
        now = self._clock()
        return {pair: known.corrected(now) for pair, known in self._known.items()}

    def between(self, source: NodeId, target: NodeId) -> LinkCost | None:
        """The cost of a link, in either direction; None: it was not measured."""
        known = self._between(source, target)
        return known.corrected(self._clock()) if known else None

    def is_recent(self, source: Computer, target: Computer) -> bool:
        """Whether a pair was measured a short time ago, and both had the addresses of today."""
        key = (source.node_id, target.node_id)
        known, offered = self._known.get(key), self._offered.get(key)
        is_young = known is not None and self._clock() - known.when < LINK_AGE_S
        return is_young and offered in (None, _offered(source, target))

    def _between(self, source: NodeId, target: NodeId) -> _KnownLink | None:
        return self._known.get((source, target)) or self._known.get((target, source))

    # --- measuring

    async def measure(
        self, master: Computer, workers: Sequence[Computer], *, anew: bool = False
    ) -> Mapping[_Pair, LinkCost]:
        """The cost of the link between each pair. A pair that cannot be measured is left out.

        Links are measured only if they are not known, are too old, or with `anew`. They are
        measured one after the other, so that no measurement takes another's bandwidth.
        """
        async with self._measuring:
            # In one order at any time, so that no pair is measured a second time the other way round.
            in_order = sorted(workers, key=lambda worker: worker.node_id)
            for source, target in _pairs(master, in_order):
                await self._measure(source, target, anew=anew)
        ids = {c.node_id for c in (master, *workers)}
        return {key: cost for key, cost in self.known().items() if ids.issuperset(key)}

    async def measure_in_passing(self, master: Computer, worker: Computer) -> bool:
        """Measure the link to a computer that has just come, to show it. A plan measures it again.

        Returns:
            Whether the link could be measured.
        """
        async with self._measuring:
            await self._measure(master, worker, in_passing=True)
        return (master.node_id, worker.node_id) in self._known

    async def again(self, source: Computer, target: Computer) -> bool:
        """Measure a pair whatever is known of it. Returns whether it costs something else now."""
        key = (source.node_id, target.node_id)
        before = self._known.get(key)
        async with self._measuring:
            await self._measure(source, target, anew=True)
        after = self._known.get(key)
        if after is None or after is before:  # it cannot be measured now
            return False
        return has_changed(before.cost if before is not None else None, after.cost)

    async def test(self, source: Computer, target: Computer) -> LinkCost:
        """Measure a pair now, because somebody asks.

        Raises:
            UnreachableError: it cannot be measured.
        """
        key = (source.node_id, target.node_id)
        before = self._known.get(key)
        self._failed.pop(key, None)
        await self.again(source, target)
        if (after := self._known.get(key)) is None or after is before:
            raise UnreachableError(
                f"The link to {target.name} cannot be tested: it does not answer in time. Is it in"
                " the same network, and does its firewall let Potluck in?"
            )
        return after.cost

    async def _measure(
        self, source: Computer, target: Computer, *, anew: bool = False, in_passing: bool = False
    ) -> None:
        """Measure a pair if it is not known or with `anew`, unless it failed a short time ago."""
        key = (source.node_id, target.node_id)
        known, failed = self._known.get(key), self._failed.get(key)
        is_enough = known is not None and not anew and (in_passing or not known.in_passing)
        if known is not None and is_enough and self.is_recent(source, target):
            return
        if failed is not None and self._clock() - failed < FAILED_AGE_S:
            return
        try:
            offered = _offered(source, target)
            measured = await source.measure_link_to(target.node_id, target.addresses)
        except PotluckError as error:
            logger.warning("no way from %s to %s: %s", source.name, target.name, error)
            self._failed[key] = self._clock()
        else:
            self._failed.pop(key, None)
            cost = LinkCost(rtt_ms=measured.rtt_ms, bytes_per_s=measured.bytes_per_s)
            self._known[key] = _KnownLink(cost, self._clock(), self._date(), in_passing)
            self._changed()
            self._offered[key] = offered
            target.reached(source.node_id, measured.address)

    # --- in use

    def observe(self, source: NodeId, target: NodeId, bytes_per_s: float, *, alone: bool) -> None:
        """Correct a link's bandwidth by the rate of a transfer between its two computers.

        Args:
            source: one end.
            target: the other end.
            bytes_per_s: of the transfer.
            alone: whether nothing else was sent meanwhile. A transfer beside others, or one that is
                limited, shows only that a link is as fast as this at least.
        """
        known = self._between(source, target)
        if known is not None and (alone or bytes_per_s > known.cost.bytes_per_s):
            known.correction.observe(bytes_per_s / known.cost.bytes_per_s, self._clock())

    def doubted(self) -> list[_Pair]:
        """The pairs whose transfers take another time than was measured."""
        now = self._clock()
        return [
            p for p, known in self._known.items() if has_changed(known.cost, known.corrected(now))
        ]

    def forget(self, node_id: NodeId) -> None:
        """Forget a computer's links: it left, and may be in another place when it comes back."""
        self._known = {key: link for key, link in self._known.items() if node_id not in key}
        self._failed = {key: when for key, when in self._failed.items() if node_id not in key}


def _pairs(master: Computer, workers: Sequence[Computer]) -> Iterable[tuple[Computer, Computer]]:
    for index, worker in enumerate(workers):
        yield master, worker
        for other in workers[index + 1 :]:
            yield worker, other


def _offered(source: Computer, target: Computer) -> _Offered:
    """The addresses of both ends: with other addresses, there may be a faster way."""
    return frozenset(source.addresses), frozenset(target.addresses)
