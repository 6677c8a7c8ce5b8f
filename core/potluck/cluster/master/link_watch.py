"""Notices what happens to links between two plans, and has them measured again at once.

Four things say that a link is not what it was: its computers have other addresses, the round trips
of its heartbeats take another time, the tokens of an answer are on the way for another time, and so are
weights (`Links.observe`).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from potluck.cluster.computer import Computer
from potluck.cluster.events import Events, LinkChanged
from potluck.cluster.master.loader import DEPLOYING
from potluck.cluster.master.master import Master
from potluck.ids import NodeId
from potluck.plan.deviation import Deviation, has_changed

LOOK_S = 1.0  # between two looks; heartbeats come about as often
_Pair = tuple[Computer, Computer]


class ConnectedComputer(Computer, Protocol):
    """A worker with its control connection."""

    @property
    def least_rtt_s(self) -> float | None:
        """The shortest of the last round trips of its heartbeats; None: there are too few."""
        ...


class LinkWatch:
    """Watches the links of a master to its workers, and those of its plan."""

    def __init__(
        self,
        *,
        local: Computer,
        connected: Callable[[], Sequence[ConnectedComputer]],
        master: Master,
        events: Events,
    ) -> None:
        """Make a watch; `run` begins it.

        Args:
            local: this computer.
            connected: the workers.
            master: its measurements are kept up to date, and its plan tells which links are used.
            events: receives `LinkChanged`, and a change of what clients are shown.
        """
        self._local = local
        self._connected = connected
        self._master = master
        self._events = events
        # Beginning with a connection, since the next one may go over another network.
        self._heartbeats: dict[ConnectedComputer, Deviation] = {}
        self._tokens: tuple[int, Deviation] = (0, Deviation())  # of the plan with this epoch

    async def run(self) -> None:
        """Watch until it is cancelled, and have the plan weighed with computers that came."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(loop.time())
            self._master.weigh()

    async def look(self, now: float) -> None:
        """Look at every link once, and measure those again that are not what they were.

        Args:
            now: seconds of any clock.
        """
        if self._master.state.phase in DEPLOYING or self._master.spares.is_sending:
            return  # the weights that are sent take all of a link
        for computer in self._connected():
            if not self._master.measurements.links.is_recent(self._local, computer):
                await self._measure_in_passing(computer)
        doubted = (*self._by_heartbeats(now), *self._by_tokens(now), *self._by_transfers())
        for source, target in dict.fromkeys(doubted):
            await self._measure_again(source, target)

    def _by_heartbeats(self, now: float) -> list[_Pair]:
        """The links of the workers whose round trips deviate."""
        connected, doubted = self._connected(), list[_Pair]()
        self._heartbeats = {c: self._heartbeats.get(c, Deviation()) for c in connected}
        for computer, deviation in self._heartbeats.items():
            rtt_s = computer.least_rtt_s
            if rtt_s is not None and deviation.observe(1000 * rtt_s, now):
                used = (pair for pair in self._used() if computer in pair)
                doubted += [(self._local, computer), *used]
        return doubted

    def _by_tokens(self, now: float) -> list[_Pair]:
        """All links of the plan in force, if its tokens are on the way for another time."""
        deployment = self._master.deployment
        if deployment is None or deployment.pipeline is None:
            return []
        if deployment.epoch != self._tokens[0]:
            plan = deployment.planned.plan
            expected = plan.token_ms - sum(stage.predicted_ms for stage in plan.pipeline)
            self._tokens = deployment.epoch, Deviation(expected)
        hops_ms = deployment.pipeline.times.hops_ms()
        deviates = hops_ms is not None and self._tokens[1].observe(hops_ms, now)
        return list(self._used()) if deviates else []

    def _by_transfers(self) -> list[_Pair]:
        """The links over which weights were sent at another rate than was measured."""
        present: dict[NodeId, Computer] = {c.node_id: c for c in (self._local, *self._connected())}
        doubted = self._master.measurements.links.doubted()
        return [(present[s], present[t]) for s, t in doubted if s in present and t in present]

    def _used(self) -> Iterable[_Pair]:
        """The pairs of computers between which the tokens of the plan in force travel."""
        deployment = self._master.deployment
        if deployment is None:
            return
        present: dict[NodeId, Computer] = {c.node_id: c for c in self._connected()}
        stages = [present.get(task.stage.node, self._local) for task in deployment.tasks]
        for source, target in pairwise((self._local, *stages, self._local)):
            if source is not target:  # pairs are measured from the master to the others
                yield (source, target) if target is not self._local else (target, source)

    async def _measure_in_passing(self, computer: ConnectedComputer) -> None:
        """Measure the link to a worker that has just come, or that has other addresses."""
        links, ends = self._master.measurements.links, (self._local.node_id, computer.node_id)
        before = links.between(*ends)
        await links.measure_in_passing(self._local, computer)
        after = links.between(*ends)
        if after is None or after == before:
            return
        self._events.changed()
        if before is not None and has_changed(before, after):
            self._tell(self._local, computer)

    async def _measure_again(self, source: Computer, target: Computer) -> None:
        if await self._master.measurements.links.again(source, target):
            self._events.changed()
            self._tell(source, target)

    def _tell(self, source: Computer, target: Computer) -> None:
        self._events.publish(LinkChanged(source=source.node_id, target=target.node_id))
