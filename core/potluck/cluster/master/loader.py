"""The long actions of the master: make a plan, put it into force, and take it out of force."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from potluck.api.values.schema import LoadPhase, PlanRequest
from potluck.cluster.computer import Computer, Computers
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.turns import Turns
from potluck.cluster.events import Events, ModelChanged, Notice
from potluck.cluster.master.constraints import has_constraints
from potluck.cluster.master.deadlines import DEADLINES, PlanningDeadlines
from potluck.cluster.master.deployment import Deployment, unload
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.planned import ModelInUse, Planned
from potluck.cluster.master.planning import Planner
from potluck.cluster.master.readers import Readers
from potluck.cluster.master.replicas import Replicas
from potluck.cluster.master.sources import Sources
from potluck.cluster.master.spare_copies import SpareCopies
from potluck.cluster.master.taking_over import TakingOver
from potluck.cluster.master.viewers import Viewers, viewer_of
from potluck.cluster.master.vocabulary import Loaded, MakePlan, PlanMade, Retired
from potluck.errors import OutOfMemoryError, PeerLostError, PlanError, PotluckError
from potluck.ids import NodeId
from potluck.plan.adoption import is_better
from potluck.plan.byhand import by_hand
from potluck.plan.stages import Plan
from potluck.store.registry import model_name

logger = logging.getLogger(__name__)

DEPLOYING: tuple[LoadPhase, ...] = ("quantising", "streaming", "loading")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState:
    """How far the loading of a model is, as clients see it."""

    phase: LoadPhase | None = None  # None: nothing was asked for
    name: str | None = None  # of the model that is being opened or planned
    message: str = ""
    hashed: float = 0.0
    error: PotluckError | None = None


class Loader:
    """Carries out one long action at a time. What it has loaded is known as soon as one begins.

    Attributes:
        deployment: the plan that is in force, or being put into force.
        progress: of the load that is under way.
        spares: what workers have on their disks in case another one is lost.
        readers: read long prompts for the deployment in force, if it has some.
        viewers: read pictures for its first stage, if it has one.
        replicas: hold the model beside the deployment in force, if it has some.
    """

    def __init__(
        self,
        computers: Computers,
        planner: Planner,
        events: Events,
        *,
        recover: Callable[[], Awaitable[None]],
        deadlines: PlanningDeadlines = DEADLINES,
        packing: Packing | None = None,
    ) -> None:
        """Make a loader that has loaded nothing.

        Args:
            computers: this computer and the connected workers.
            planner: makes the plans.
            events: receives `ModelChanged`.
            recover: loads the model again, for answers whose pipeline broke.
            deadlines: how long is waited before spare copies are sent, and before answers are interrupted.
            packing: packs weights before they are sent; None: they are sent as the files have them.
        """
        self.deployment: Deployment | None = None
        self.progress = LoadState()
        self._computers = computers
        self._planner = planner
        self._events = events
        self._recover = recover
        self._answers_s = deadlines.answers_s
        self._packing = packing
        self._planned: Planned | None = None  # the plan that was made last
        self._sources = Sources(
            local=computers.local.node_id,
            link_rate=self._rate_between,
            present=lambda: [computer.node_id for computer in computers.available()],
            links=planner.measurements.links,
        )
        self.spares = SpareCopies(
            computers=computers,
            planner=planner,
            packing=packing,
            sources=self._sources,
            link_rate=self._link_rate,
            quiet_s=deadlines.quiet_s,
            changed=lambda: events.publish(ModelChanged()),
        )
        self.readers = Readers(
            present=lambda: self._present().keys(),
            deployment=self._deployment_of_readers,
            find=planner.reading_beside,
            tell=lambda text: events.publish(Notice(level="warning", text=text)),
            retry_s=deadlines.readers_s,
        )
        self.viewers = Viewers(
            "viewers",
            present=lambda: [c.node_id for c in (computers.local, *computers.available())],
            deployment=partial(viewer_of, self._deployment_beside),
            find=planner.with_viewing,
            tell=lambda text: events.publish(Notice(level="warning", text=text)),
            retry_s=deadlines.readers_s,
            changed=lambda: events.publish(ModelChanged()),
        )
        self.replicas = Replicas(
            present=lambda: [c.node_id for c in (computers.local, *computers.available())],
            leaving=lambda: [computer.node_id for computer in computers.leaving()],
            deployment=self._deployment_beside,
            plan=planner.plan_among,
            tell=lambda text: events.publish(Notice(level="warning", text=text)),
            changed=lambda: events.publish(ModelChanged()),
            retry_s=deadlines.readers_s,
            answers_s=deadlines.answers_s,
        )
        self._taking_over = TakingOver(computers, events)
        self._generator: Generator | None = None
        self._generates: ModelInUse | None = None

    @property
    def loaded(self) -> tuple[Deployment, Generator] | None:
        """What answers prompts; None: nothing is loaded."""
        if self.deployment is None or self._generator is None:
            return None
        return self.deployment, self._generator

    @property
    def turns(self) -> Turns | None:
        """Who is answered and who waits; None: nothing was loaded yet."""
        return self._generator.turns if self._generator is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether a model is loaded, and no answer is under way."""
        generator = self._generator
        return self.deployment is not None and generator is not None and generator.is_idle

    @property
    def is_answering(self) -> bool:
        """Whether an answer is under way."""
        return self._generator is not None and not self._generator.is_idle

    @property
    def culprit(self) -> NodeId | None:
        """The computer whose error ended the deployment; None: there is none."""
        return self.deployment.culprit if self.deployment is not None else None

    # --- a plan

    def make_plan(self, action: MakePlan) -> Coroutine[None, None, PlanMade]:
        if action.is_improvement:
            return self._improve(action)
        name = _name_of(action.request)
        self.progress = LoadState(phase="hashing", name=name, message="Looking for the model")
        return self._make_plan(action)

    async def _improve(self, action: MakePlan) -> PlanMade:
        """Make a plan beside the one in force.

        If it is worth the change, the others are sent what they lack meanwhile.
        """
        running = self.deployment
        assert running is not None
        before = running.planned
        request = msgspec.structs.replace(action.request, scheme=before.scheme)
        planned = await self._planned_beside(request, action)
        if planned.model_in_use != before.model_in_use:
            return PlanMade(stages=None)  # its files have changed: the next load takes them
        is_asked_for = action.is_handover or has_constraints(request)
        now = before.plan if is_asked_for else await self._as_measured_now(request, before)
        if not is_asked_for and not is_better(planned.plan, now):
            logger.info("no better plan ms=%.2f, now %.2f", planned.plan.token_ms, now.token_ms)
            return PlanMade(stages=None)
        joining = self._deployment(planned, running.epoch + 1, changed=lambda: None)

        def pays(nbytes: int, rate: float) -> bool:
            return is_asked_for or is_better(planned.plan, now, nbytes, bytes_per_s=rate)

        if not (
            await self.spares.send_for(planned, before, pays)
            and await joining.send_ahead(running.uses, pays)
        ):
            return PlanMade(stages=None)
        if not action.is_handover:
            await self._wait_for_answers()
        self._planned = planned
        logger.info("a better plan ms=%.2f instead of %.2f", planned.plan.token_ms, now.token_ms)
        return PlanMade(stages=planned.plan.stages)

    async def _wait_for_answers(self) -> None:
        """Wait until no answer is under way, but not for long: some are always asked for."""
        assert self._generator is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._answers_s):
                await self._generator.turns.idle.wait()

    async def _planned_beside(self, request: PlanRequest, action: MakePlan) -> Planned:
        try:
            return await self._planner.plan(
                request, settle=False, near=self._planned, is_answering=self.is_answering
            )
        except (PlanError, OutOfMemoryError):
            if action.is_handover:
                for computer in self._computers.leaving():
                    await computer.is_needed()
            raise

    async def _as_measured_now(self, request: PlanRequest, running: Planned) -> Plan:
        """The plan in force, with the speed that it has by today's measurements."""
        try:
            planned = await self._planner.plan(
                msgspec.structs.replace(request, layers=by_hand(running.plan)),
                settle=False,
                is_answering=self.is_answering,
            )
        except PotluckError as error:
            logger.info("the plan in force is taken as it was: %s", error)
            return running.plan
        return planned.plan

    async def _make_plan(self, action: MakePlan) -> PlanMade:
        request = action.request
        if action.is_recovery and self._generates is not None:
            _, scheme, _, _ = self._generates  # answers go on in no other one
            request = msgspec.structs.replace(request, scheme=scheme)
        began = time.monotonic()
        self._planned = await self._planner.plan(
            request,
            settle=action.settle,
            check=action.check,
            is_recovery=action.is_recovery,
            avoid=action.avoid,
            near=self._planned,
            enter=self._enter,
            is_answering=self.is_answering,
        )
        logger.info(
            "plan made s=%.2f recovery=%s stages=%s",
            time.monotonic() - began,
            action.is_recovery,
            self._planned.stage_names,
        )
        return PlanMade(stages=self._planned.plan.stages)

    def _enter(self, phase: LoadPhase, message: str, done: float | None = None) -> None:
        hashed = self.progress.hashed if done is None else done
        name = self.progress.name
        self.progress = LoadState(phase=phase, name=name, message=message, hashed=hashed)
        self._events.publish(ModelChanged())

    # --- a deployment

    def deploy(self, epoch: int) -> Coroutine[None, None, Loaded]:
        """Put the plan that was made last into force."""
        assert self._planned is not None
        left = self._taking_over.take()
        self.deployment = self._deployment(
            self._planned, epoch, changed=self._deployment_changed, before=left
        )
        return self._deploy(self.deployment)

    def _deployment(
        self,
        planned: Planned,
        epoch: int,
        *,
        changed: Callable[[], None],
        answering: Deployment | None = None,
        before: Deployment | None = None,
    ) -> Deployment:
        return Deployment(
            planned=planned,
            epoch=epoch,
            computers=self._present(),
            changed=changed,
            packing=self._packing,
            link_rate=self._link_rate,
            sources=self._sources,
            answering=answering,
            before=before,
        )

    def _deployment_of_readers(self, planned: Planned, answering: Deployment) -> Deployment:
        return self._deployment(
            planned,
            answering.epoch,
            changed=lambda: self._events.publish(ModelChanged()),
            answering=answering,
        )

    def _deployment_beside(self, planned: Planned, beside: Deployment) -> Deployment:
        changed = partial(self._events.publish, ModelChanged())
        return self._deployment(planned, beside.epoch, changed=changed)

    def promote(self) -> None:
        """Have another replica take the place of the deployment in force, which is lost or leaves."""
        assert self.deployment is not None
        self.deployment = self.replicas.promote(self.deployment)
        self._planned = self.deployment.planned

    async def _deploy(self, deployment: Deployment) -> Loaded:
        planned, began = deployment.planned, time.monotonic()
        pipeline = await deployment.start()
        logger.info("plan in force epoch=%d s=%.2f", deployment.epoch, time.monotonic() - began)
        self._generator = self._generator_of(planned)
        self._generator.attach(
            pipeline,
            context=planned.context,
            room=deployment.room,
            chunk_tokens=planned.chunk_tokens,
            speed=planned.speed,
        )
        self._taking_over.begin(deployment, self._generator)
        self.readers.begin(deployment, self._generator)
        self.viewers.begin(deployment, self._generator)
        self.replicas.begin(deployment, self._generator)
        return Loaded()

    def _generator_of(self, planned: Planned) -> Generator:
        """The generator before, if it has the same model, so that its conversations go on."""
        if self._generator is not None:
            if self._generates == planned.model_in_use:
                return self._generator
            error = PeerLostError(
                "Another model was loaded meanwhile. Send the message again, and that one answers."
            )
            self._generator.close(error)
        self._generates = planned.model_in_use
        return Generator(
            recover=self._recover, queue_changed=lambda: self._events.publish(ModelChanged())
        )

    def _deployment_changed(self) -> None:
        if self.deployment is not None:
            phase, message = self.deployment.phase, self.deployment.message
            self.progress = replace(self.progress, phase=phase, message=message)
        self._events.publish(ModelChanged())

    def _link_rate(self, node: NodeId) -> float | None:
        """Bytes per second to a computer, as measured last; None: not measured."""
        return self._rate_between(self._computers.local.node_id, node)

    def _rate_between(self, source: NodeId, target: NodeId) -> float | None:
        link = self._planner.measurements.links.between(source, target)
        rate = link.bytes_per_s if link is not None else None
        if rate is None or self._packing is None or source != self._computers.local.node_id:
            return rate
        return self._packing.throttle.rate(rate)

    def retire(self, keep: Container[NodeId]) -> Coroutine[None, None, Retired]:
        """Take the deployment out of force. The computers in `keep` keep their layers."""
        deployment, self.deployment = self.deployment, None
        assert deployment is not None
        self._taking_over.leave(deployment, self._planned)
        return self._retire(deployment, keep)

    async def _retire(self, deployment: Deployment, keep: Container[NodeId]) -> Retired:
        await self._taking_over.drain(deployment)
        for stop in (self.readers.end, self.viewers.end, self.replicas.end, deployment.stop):
            try:
                await stop(keep=keep)
            except Exception:  # the others end all the same, and the next action can begin
                logger.exception(
                    "the plan in force did not end as it should epoch=%d", deployment.epoch
                )
        await self._taking_over.end()
        return Retired()

    async def free(self, node_id: NodeId, epoch: int) -> None:
        """Have a computer free the layers of an epoch, if it is still connected, and nobody gets caches from it."""
        await self._taking_over.settled()
        if (computer := self._present().get(node_id)) is not None:
            await unload(computer, epoch)

    def _present(self) -> dict[NodeId, Computer]:
        computers = self._computers
        here = (computers.local, *computers.available(), *computers.leaving())
        return {computer.node_id: computer for computer in here}


def _name_of(request: PlanRequest) -> str:
    """The name of a model before it is opened. A request that names none is for the guide."""
    if request.shape is not None:
        return request.shape
    if request.model is None or request.model == "guide":
        return "guide"
    return model_name(Path(request.model))
