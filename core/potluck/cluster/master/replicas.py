"""The other times that the model is held, beside the deployment in force: each is a deployment of its own.

Answers never wait for one. All are equal but for this: one of them is the deployment in force, which the master's
state knows. When that one is lost or leaves, another one takes its place (`promote`). A replica that is lost is
planned again with the computers that nothing else uses, and its answers go on at the others meanwhile. A computer
that fails is left out for a while, twice as long each time; the person is told once, until it has worked for long.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Container
from contextlib import suppress
from dataclasses import dataclass, field

from potluck.cluster.device_names import device_of
from potluck.cluster.driver.generation import Generator
from potluck.cluster.events import ComputerLost, StageLost
from potluck.cluster.master.backoff import MOST_S, Backoff
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.going_over import go_over
from potluck.cluster.master.losses import is_of
from potluck.cluster.master.planned import Planned
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.stages import Plan
from potluck.wire.messages import DeviceId, StepFailed

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Replica:
    """One of the others.

    Attributes:
        deployment: of its plan.
        work: prepares it, and waits until it is lost.
        settled: set when it answers, or will not.
        leaves: set when it is to begin no answers any more.
        is_promoted: whether it is the deployment in force now.
        since: when it began to answer, in seconds.
    """

    deployment: Deployment
    work: asyncio.Task[None] | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    leaves: asyncio.Event = field(default_factory=asyncio.Event)
    is_promoted: bool = False
    since: float = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        pipeline = self.deployment.pipeline
        is_here = self.settled.is_set() and not self.leaves.is_set()
        return is_here and pipeline is not None and pipeline.broken is None

    @property
    def nodes(self) -> frozenset[NodeId]:
        return frozenset(stage.node for stage in self.deployment.planned.plan.stages)

    @property
    def names(self) -> str:
        return " and ".join(dict.fromkeys(s.name for s in self.deployment.planned.plan.stages))


class Replicas:
    """Prepares the replicas of a plan that is in force, and prepares lost ones again.

    Args:
        present: the computers that may have a stage.
        leaving: those that are about to leave.
        deployment: makes the deployment of a replica, beside the one in force.
        plan: makes a plan on some computers, or raises PotluckError.
        tell: shows a line of text to the person at this computer.
        changed: called when another number of them answer.
        retry_s: how long is waited after one was lost or could not be planned, the first time.
        answers_s: how long the answers of one that leaves may go on there.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        present: Callable[[], Collection[NodeId]],
        leaving: Callable[[], Collection[NodeId]],
        deployment: Callable[[Planned, Deployment], Deployment],
        plan: Callable[[frozenset[NodeId], Planned], Awaitable[Plan]],
        tell: Callable[[str], None],
        changed: Callable[[], None],
        retry_s: float,
        answers_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._present, self._leaving = present, leaving
        self._make, self._plan, self._tell = deployment, plan, tell
        self._changed = changed
        self._retry_s, self._answers_s, self._clock = retry_s, answers_s, clock
        self._first: tuple[Deployment, Generator] | None = None
        self._others: list[_Replica] = []
        self._planning: asyncio.Task[None] | None = None
        self._going_over = asyncio.Lock()  # the conversations of one after the other
        self._keep: Container[NodeId] = ()
        self._next = 0.0  # time before which no other one is planned
        self._failing = Backoff[NodeId](retry_s, clock=clock)  # computers
        self._no_room = Backoff[frozenset[NodeId]](retry_s, clock=clock)  # computers together
        self._blamed: set[Deployment] = set()  # of whose end it is known whose fault it is
        self._told = set[str]()  # the names of those whose failure was told

    @property
    def deployments(self) -> list[Deployment]:
        """Those of the others that are being prepared, or answer."""
        return [each.deployment for each in self._others if not each.leaves.is_set()]

    @property
    def planned(self) -> list[Planned] | None:
        """The plans of the others; None: no plan is in force."""
        return None if self._first is None else [each.planned for each in self.deployments]

    @property
    def ready(self) -> Deployment | None:
        """The fastest of the others that answer, and do not leave; None: there is none."""
        leaving = self._leaving()
        ready = [each.deployment for each in self._others if each.is_ready]
        staying = [each for each in ready if not any(map(each.uses, leaving))]
        return min(staying, key=lambda each: each.planned.plan.token_ms, default=None)

    async def settled(self) -> None:
        """Wait until each of the others answers, or it is known that it will not."""
        for each in list(self._others):
            await each.settled.wait()

    def begin(self, first: Deployment, generator: Generator) -> None:
        """Prepare the other replicas of a plan that is in force, if it has some."""
        self._first, self._next = (first, generator), 0.0
        self._failing.clear()
        self._no_room.clear()
        self._told.clear()
        for plan in first.planned.replicas:
            self._prepare(first.planned.of_replica(plan))

    def look(self) -> None:
        """Let those go that leave, and plan another one if one is missing and computers are free."""
        if self._first is None:
            return
        leaving, now = self._leaving(), self._clock()
        for each in self._others:
            if each.is_ready and now - each.since >= MOST_S:
                self._has_worked(each)
            if each.is_ready and any(map(each.deployment.uses, leaving)):
                self._tell(f"{each.names}: a computer leaves. Answers go on at another replica.")
                each.leaves.set()
                self._blamed.add(each.deployment)
        missing = self._first[0].planned.replicas_wanted - 1 - len(self.deployments)
        if missing <= 0 or self._planning is not None or now < self._next:
            return
        if (free := self._free()) and self._no_room.is_due(free):
            self._planning = asyncio.create_task(self._plan_again(free), name="replica")

    def promote(self, first: Deployment) -> Deployment:
        """Take another replica for the deployment in force, and let that one go. There must be one: `ready`."""
        promoted = self.ready
        assert promoted is not None
        assert self._first is not None
        (each,) = (each for each in self._others if each.deployment is promoted)
        self._others.remove(each)
        each.is_promoted = True
        if each.work is not None:
            each.work.cancel()
        generator = self._first[1]
        self._first = promoted, generator
        if first.pipeline is not None and first.pipeline.broken is None:
            self._blamed.add(first)  # it leaves
        before = _Replica(first)
        before.settled.set()
        before.leaves.set()
        self._others.append(before)
        before.work = asyncio.create_task(self._hold(before, generator), name="replica")
        return promoted

    async def end(self, *, keep: Container[NodeId] = ()) -> None:
        """Take all of the others out of force. The computers in `keep` keep their layers."""
        first, self._first, self._keep = self._first, None, keep
        self._blamed.clear()
        if self._planning is not None:
            self._planning.cancel()
            await asyncio.wait([self._planning])
            self._planning = None
        for each in list(self._others):
            if each.work is not None:
                each.work.cancel()
                await asyncio.wait([each.work])
            if first is not None and each in self._others:  # its work had not begun
                await self._stop(each, first[1])
        self._keep = ()

    def devices_of(self, node: NodeId) -> frozenset[DeviceId]:
        """The devices of a computer that have a stage of one of the others."""
        stages = (s for each in self._others for s in each.deployment.planned.plan.stages)
        return frozenset(device_of(stage.device) for stage in stages if stage.node == node)

    def step_failed(self, node: NodeId, failure: StepFailed) -> bool:
        """Take the report of a computer, if it has a stage of one of the others."""
        for each in self._others:
            if each.deployment.uses(node):
                if each.deployment.pipeline is not None:
                    each.deployment.pipeline.step_failed(failure)
                return True
        return False

    def lost(self, lost: ComputerLost | StageLost, error: PotluckError) -> None:
        """Note that a computer was lost, or the stage of a device."""
        if self._first is not None and is_of(self._first[0], lost):
            self._blame(self._first[0], [lost.node_id])
        for each in self._others:
            if is_of(each.deployment, lost):
                self._blame(each.deployment, [lost.node_id])
                each.deployment.fail(error)

    # --- one of the others

    def _free(self) -> frozenset[NodeId]:
        """The computers that have no part of any replica, and are not left out because they failed."""
        assert self._first is not None
        used = [self._first[0], *(each.deployment for each in self._others)]
        here = set(filter(self._failing.is_due, self._present())) - set(self._leaving())
        return frozenset(node for node in here if not any(one.uses(node) for one in used))

    async def _plan_again(self, free: frozenset[NodeId]) -> None:
        assert self._first is not None
        planned = self._first[0].planned
        try:
            plan = await self._plan(free, planned)
        except PotluckError as error:
            logger.info("no other replica has room: %s", error.message)
            self._no_room.failed(free)
        else:
            self._no_room.worked(free)
            if all(stage.node in self._free() for stage in plan.stages):
                self._prepare(planned.of_replica(plan))
        finally:
            self._planning = None

    def _prepare(self, planned: Planned) -> None:
        assert self._first is not None
        first, generator = self._first
        try:
            each = _Replica(self._make(planned, first))
        except KeyError:  # one of its computers has just gone
            self._next = self._clock() + self._retry_s
            return
        self._others.append(each)
        each.work = asyncio.create_task(self._hold(each, generator), name="replica")

    async def _hold(self, each: _Replica, generator: Generator) -> None:
        """Have a replica answer until it is lost, has left, or is ended."""
        try:
            if each.deployment.pipeline is None:
                await self._start(each, generator)
            await self._until_over(each, generator)
        except PotluckError as error:
            why = f"the model cannot be held there. The others answer. {error.message}"
            self._tell_once(each, f"{each.names}: {why}")
        finally:
            if not each.is_promoted:
                await self._stop(each, generator)

    async def _start(self, each: _Replica, generator: Generator) -> None:
        deployment = each.deployment
        generator.attach(
            await deployment.start(),
            context=deployment.planned.context,
            room=deployment.room,
            chunk_tokens=deployment.planned.chunk_tokens,
            speed=deployment.planned.speed,
            is_replica=True,
        )
        each.since = self._clock()
        each.settled.set()
        logger.info("another replica answers: %s", each.names)
        self._changed()

    async def _until_over(self, each: _Replica, generator: Generator) -> None:
        """Wait until a replica is lost, or is to leave and its answers have ended, or take too long."""
        pipeline = each.deployment.pipeline
        assert pipeline is not None
        ends = [
            asyncio.create_task(each.deployment.wait_broken()),
            asyncio.create_task(each.leaves.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ends:
                one.cancel()
        if pipeline.broken is not None:
            if not each.leaves.is_set():  # of the deployment in force, the master has told it
                why = f"{pipeline.broken.message} Its answers go on at another replica."
                self._tell_once(each, why)
        elif not await self._go_over(each, generator):
            generator.leave(pipeline)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._answers_s):
                    await generator.unused(pipeline)

    async def _go_over(self, each: _Replica, generator: Generator) -> bool:
        """Have the conversations of one that leaves go on at another one, with their caches, if they can."""
        async with self._going_over:
            heir = self._staying
            if heir is None:
                return False
            brought = await go_over(each.deployment, heir, generator)
        if brought is not None and brought.again:
            self._tell(brought.told)
        return brought is not None

    @property
    def _staying(self) -> Deployment | None:
        """The fastest of all that answer, and do not leave; None: there is none."""
        found = [] if (ready := self.ready) is None else [ready]
        if self._first is not None:
            first, leaving = self._first[0], self._leaving()
            is_here = first.pipeline is not None and first.pipeline.broken is None
            if is_here and not any(map(first.uses, leaving)):
                found.append(first)
        return min(found, key=lambda each: each.planned.plan.token_ms, default=None)

    async def _stop(self, each: _Replica, generator: Generator) -> None:
        """End one of the others; answers that are under way there go on elsewhere."""
        each.settled.set()
        if (pipeline := each.deployment.pipeline) is not None:
            generator.detach(pipeline)
        try:
            with suppress(PotluckError):
                await each.deployment.stop(keep=self._keep)
        finally:
            if each in self._others:
                self._others.remove(each)
            if self._first is not None:  # else it was ended, which is nobody's fault
                culprit = each.deployment.culprit
                self._blame(each.deployment, each.nodes if culprit is None else [culprit])
            self._blamed.discard(each.deployment)
            self._next = self._clock() + self._retry_s
            self._changed()

    # --- those that fail

    def _blame(self, deployment: Deployment, nodes: Collection[NodeId]) -> None:
        """Leave computers out for a while that a deployment ended by, unless it is known already by which."""
        if deployment in self._blamed:
            return
        self._blamed.add(deployment)
        for node in nodes:
            self._failing.failed(node)

    def _has_worked(self, each: _Replica) -> None:
        """Forget that the computers of one have failed: it has answered for long."""
        for node in each.nodes:
            self._failing.worked(node)
        self._told.discard(each.names)

    def _tell_once(self, each: _Replica, text: str) -> None:
        """Tell the first failure of one: it is tried again and again."""
        if each.names in self._told:
            logger.info("another time: %s", text)
            return
        self._told.add(each.names)
        self._tell(f"{text} It will be tried again, less and less often.")
