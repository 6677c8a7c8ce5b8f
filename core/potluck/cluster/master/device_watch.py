"""Notices devices that are slower in use than they were planned with, and those that are quick again.

What each stage took corrects the measurements (`Measurements.observe`). If a device then is another one
than its plan was made with, the plan is weighed again (`DeviceChanged`), as for a link. A slow device that
has no stage any more is measured again now and then, until it is as quick as before.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TypeAlias

from potluck.cluster.computer import Computer, Computers
from potluck.cluster.device_names import device_of
from potluck.cluster.events import DeviceChanged, Events, Notice
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.master import Master
from potluck.cluster.master.measurements import PROFILE_TOKENS
from potluck.cluster.master.planned import Planned
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.deviation import QUICKER, SLOWER, Pace
from potluck.plan.stages import Plan
from potluck.wire.measuring_messages import Profile
from potluck.wire.messages import DeviceId

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks
AGAIN_S = 120.0  # until a slow device is measured again, which takes it a second or two
MOST_AGAIN_S = 900.0  # it is twice as long each time that the device becomes slow, up to this
_Place: TypeAlias = tuple[NodeId, DeviceId]


class DeviceWatch:
    """Watches the devices that were measured for the plan in force."""

    def __init__(self, *, computers: Computers, master: Master, events: Events) -> None:
        """Make a watch; `run` begins it.

        Args:
            computers: this computer and the workers.
            master: its plan is watched, and its measurements are corrected.
            events: receives `DeviceChanged`, and a `Notice` when layers have moved because of it.
        """
        self._computers = computers
        self._master = master
        self._events = events
        self._paces: defaultdict[_Place, Pace] = defaultdict(Pace)
        self._seen: Deployment | None = None  # the last one that was in force
        self._told: set[_Place] = set()  # slow devices that there was a notice of
        self._measured: dict[_Place, float] = {}  # when slow devices were measured, or became slow
        self._again_s: dict[_Place, float] = {}
        self._factors: Mapping[_Place, float] = {}  # as they were seen last

    def slower(self) -> Mapping[NodeId, float]:
        """How many times as long as measured the slow devices take, by their computers: the slowest of each."""
        found: dict[NodeId, float] = {}
        for place, factor in self._factors.items():
            if self._paces[place].is_slow:
                found[place[0]] = max(factor, found.get(place[0], 1.0))
        return found

    async def run(self) -> None:
        """Watch until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(loop.time())

    async def look(self, now: float) -> None:
        """Look at every device once.

        Args:
            now: seconds of any clock.
        """
        deployment = self._master.deployment
        if deployment is None or not self._master.is_ready:
            self._factors = {} if deployment is None else self._factors
            return
        self._learn(deployment)
        planned = deployment.planned
        measurements = self._master.measurements
        factors = measurements.factors(planned.model.config, planned.scheme, planned.cache)
        before, self._factors = self.slower(), factors
        if deployment is not self._seen:
            self._change_plan(deployment, factors)
        for place, factor in factors.items():
            if self._paces[place].observe(factor, now):
                logger.info("a device is another in use node=%s factor=%.2f", place[0], factor)
                if factor >= SLOWER:
                    again_s = 2 * self._again_s.get(place, AGAIN_S / 2)
                    self._again_s[place] = min(again_s, MOST_AGAIN_S)
                self._events.publish(DeviceChanged(node_id=place[0]))
        if self.slower().keys() != before.keys():
            self._events.changed()
        await self._measure_again(planned, factors, now)

    def _learn(self, deployment: Deployment) -> None:
        """Correct the measurements by what the stages took, if that is known again."""
        pipeline, planned = deployment.pipeline, deployment.planned
        stages_ms = pipeline.times.stages_ms() if pipeline is not None else None
        if stages_ms is None:
            return
        for stage, ms in zip(planned.plan.pipeline, stages_ms, strict=True):
            if stage.is_ranked:
                continue  # nothing says which of the ranks the others have waited for
            self._master.measurements.observe(
                stage.node,
                device_of(stage.device),
                planned.model.config,
                planned.scheme,
                ms,
                layers=stage.layers,
                head=stage.head,
                cache=planned.cache,
            )

    def _change_plan(self, deployment: Deployment, factors: Mapping[_Place, float]) -> None:
        """Another plan is in force: it was made with these factors, and may have moved layers."""
        for place, factor in factors.items():
            self._paces[place].is_planned_with(factor)
        before, self._seen = self._seen, deployment
        if before is None or before.planned.model_in_use != deployment.planned.model_in_use:
            return
        old, new = before.planned.plan, deployment.planned.plan
        for place, factor in factors.items():
            change = _layers(new).get(place, 0) - _layers(old).get(place, 0)
            is_slow = self._paces[place].is_slow
            if is_slow and change < 0:
                self._told.add(place)
                self._tell(_slow(place, factor, old, new))
            elif not is_slow and change > 0 and place in self._told:
                self._told.remove(place)
                self._tell(f"{_name(place, new)} computes as fast as before: it has layers again.")

    def _tell(self, text: str) -> None:
        self._events.publish(Notice(level="info", text=text))

    async def _measure_again(
        self, planned: Planned, factors: Mapping[_Place, float], now: float
    ) -> None:
        """Measure the slow devices that no answer would show to be quick again."""
        slow = {place for place, factor in factors.items() if factor >= QUICKER}
        idle = slow - _layers(planned.plan).keys()
        self._measured = {place: self._measured.get(place, now) for place in idle}
        present = (self._computers.local, *self._computers.available())
        here: dict[NodeId, Computer] = {computer.node_id: computer for computer in present}
        wanted = Profile(
            config=dict(planned.model.manifest.config),
            scheme=planned.scheme,
            tokens=PROFILE_TOKENS,
            cache=planned.cache,
        )
        for place in idle:
            computer, again_s = here.get(place[0]), self._again_s.get(place, AGAIN_S)
            if computer is None or now - self._measured[place] < again_s:
                continue
            self._measured[place] = now
            try:
                await self._master.measurements.look_again(computer, place[1], wanted)
            except PotluckError as error:
                logger.info("%s was not measured again: %s", computer.name, error)


def _layers(plan: Plan) -> Mapping[_Place, int]:
    """How many layers each device has."""
    return {(stage.node, device_of(stage.device)): len(stage.layers) for stage in plan.stages}


def _name(place: _Place, plan: Plan) -> str:
    return next(stage.name for stage in plan.stages if stage.node == place[0])


def _slow(place: _Place, factor: float, old: Plan, new: Plan) -> str:
    """A line for people: a device is slow, and who has its layers now."""
    before, after = _layers(old), _layers(new)
    gaining = [p for p, count in after.items() if count > before.get(p, 0)]
    names = " and ".join(dict.fromkeys(_name(p, new) for p in gaining))
    times = f"{factor:.1f}".removesuffix(".0")
    which = "some of its layers" if place in after else "its layers"
    return (
        f"{_name(place, old)} computes {times} times slower than measured:"
        f" {which} are moved to {names}."
    )
