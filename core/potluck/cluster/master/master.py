"""The master's part: from a request for a model to a pipeline that answers.

One model at a time. What was asked for is remembered: when a computer of the plan is lost, the
answer under way fails with its name, and the next prompt plans again with who is left. When a
computer comes back that the plan had to do without, the next load uses it again.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from potluck.api.openai import Timings
from potluck.api.schema import LoadPhase, PlanRequest
from potluck.cluster.device_names import device_of, place_name
from potluck.cluster.driver.generation import Generator
from potluck.cluster.loss import computer_lost
from potluck.cluster.master.deployment import Deployment, Planned
from potluck.cluster.master.measurements import Measurements
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.planning import (
    DEADLINES,
    Computers,
    Planner,
    PlanningDeadlines,
    context_of,
)
from potluck.errors import (
    PeerLostError,
    PotluckError,
    UsageError,
)
from potluck.ids import NodeId
from potluck.model.shapes import SHAPES
from potluck.store.registry import LocalModel, random_model
from potluck.wire.messages import DeviceId, StepFailed

logger = logging.getLogger(__name__)

DEPLOYING: tuple[LoadPhase, ...] = ("quantising", "streaming", "loading")


@dataclass(slots=True, kw_only=True)
class LoadState:
    """How far the model is; what the faces show."""

    phase: LoadPhase | None = None  # None: nothing was asked for
    message: str = ""
    hashed: float = 0.0
    error: PotluckError | None = None


class Master:
    """Plans and loads one model on the computers there are."""

    def __init__(
        self,
        *,
        computers: Computers,
        open_model: Callable[[Path, Callable[[int, int], None]], Awaitable[LocalModel]],
        resolve: Callable[[str | None], Path],
        changed: Callable[[], None],
        packing: Packing | None = None,
        shapes: Mapping[str, Mapping[str, object]] = SHAPES,
        deadlines: PlanningDeadlines = DEADLINES,
    ) -> None:
        self.state = LoadState()
        self.deployment: Deployment | None = None
        self.request: PlanRequest | None = None
        self._computers = computers
        self._open_model = open_model
        self._resolve = resolve
        self._changed = changed
        self._packing = packing
        self._shapes = shapes  # that can be measured with random weights
        self._planner = Planner(computers, deadlines)
        self._generator: Generator | None = None
        self._epoch = secrets.randbelow(1 << 30)  # no two masters' plans are mistaken for another
        self._missing: set[NodeId] = set()  # lost from the plan asked for
        self._turn = asyncio.Lock()
        self._loading: asyncio.Task[Deployment] | None = None

    @property
    def measurements(self) -> Measurements:
        return self._planner.measurements

    @property
    def is_ready(self) -> bool:
        deployment = self.deployment
        return (
            deployment is not None
            and deployment.pipeline is not None
            and deployment.pipeline.broken is None
        )

    # --- planning

    async def plan(self, request: PlanRequest) -> Planned:
        """Measure, and decide who would compute what; changes nothing.

        Raises:
            ModelError, PlanError, UsageError: why there is no such plan.
        """
        if request.shape is not None:
            model = self._random_model(request.shape)
        else:
            model = await self._open_model(self._resolve(request.model), lambda done, total: None)
        await self._wait(request, model)
        return await self._planner.plan(request, model)

    async def _wait(self, request: PlanRequest, model: LocalModel) -> None:
        # Who was just lost is not waited for in the middle of a chat.
        await self._planner.wait(request, model, settle=not self._missing)

    def _random_model(self, shape: str) -> LocalModel:
        if (config := self._shapes.get(shape)) is None:
            raise UsageError(
                f"There is no shape called {shape}. There are: {', '.join(self._shapes)}."
            )
        return random_model(shape, config)

    async def _open(self, request: PlanRequest) -> LocalModel:
        if request.shape is not None:
            return self._random_model(request.shape)
        folder = await asyncio.to_thread(self._resolve, request.model)
        self._enter("hashing", f"Reading {folder.name}")

        def hashed(done: int, total: int) -> None:
            self.state.hashed = done / max(total, 1)
            self._changed()

        return await self._open_model(folder, hashed)

    # --- loading

    async def load(
        self,
        request: PlanRequest,
        *,
        anew: bool = False,
        check: Callable[[int], None] = lambda context: None,
    ) -> Deployment:
        """Have this model loaded as asked, unless it is already.

        Args:
            request: what is asked for.
            anew: also where it is loaded already, since something else is not as it was then.
            check: told how long a conversation may be, before anything is measured; may refuse it.

        Raises:
            PotluckError: why not. What was loaded before still is, if nothing had to make room yet.
        """
        async with self._turn:
            is_as_asked = self.is_ready and request == self.request and not anew
            if is_as_asked and not self._can_improve():
                assert self.deployment is not None
                return self.deployment
            self._missing.clear()
            return await self._run(self._load(request, check))

    async def ready(self, default: PlanRequest) -> tuple[Deployment, Generator]:
        """The loaded model and what generates on it; loaded again when its pipeline broke."""
        async with self._turn:
            if not self.is_ready:
                wanted = self.request
                request = wanted or default
                here = {c.node_id for c in (self._computers.local, *self._computers.available())}
                if not self._missing <= here:
                    request = without_constraints(request)
                try:
                    await self._run(self._load(request))
                finally:
                    # What was asked for, once everyone is back; and never another model instead.
                    self.request = wanted or self.request
            assert self.deployment is not None
            assert self._generator is not None
            return self.deployment, self._generator

    async def _run(self, load: Coroutine[None, None, Deployment]) -> Deployment:
        """Load in a task of its own, which `unload` can end without ending who waits for it."""
        task = self._loading = asyncio.create_task(load, name="load")
        try:
            await asyncio.wait([task])
        finally:
            self._loading = None
            if not task.done():  # who waits was cancelled, and nobody else wants the model
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise UsageError("The model was unloaded before it was ready.")
        return task.result()

    def _can_improve(self) -> bool:
        """Whether a computer is back that the plan in force had to do without."""
        return any(c.node_id in self._missing for c in self._computers.available())

    async def _load(
        self, request: PlanRequest, check: Callable[[int], None] = lambda context: None
    ) -> Deployment:
        try:
            model = await self._open(request)
            check(context_of(request, model))
            self._enter("waiting", "Looking for your computers")
            await self._wait(request, model)
            self._enter("planning", "Measuring the computers")
            planned = await self._planner.plan(request, model)
        except BaseException as error:
            if self.is_ready:
                self._enter("ready", "Ready")  # the model before is still loaded
            else:
                self.request = request  # no other model answers in its place
                self._failed(error)
            raise
        try:
            await self._retire()
            self.request = request
            return await self._deploy(planned)
        except BaseException as error:
            await self._retire()
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        """Say why nothing is loaded; of a cancelled load, or a fault of ours, say nothing."""
        self.state = LoadState()
        if isinstance(error, PotluckError):
            self.state = LoadState(phase="failed", message=error.message, error=error)
        else:
            self.request = None
        self._changed()

    async def _deploy(self, planned: Planned) -> Deployment:
        self._epoch += 1
        everyone = {c.node_id: c for c in (self._computers.local, *self._computers.available())}
        self._missing -= everyone.keys()
        if lost := [stage.name for stage in planned.plan.stages if stage.node not in everyone]:
            raise PeerLostError(f"{lost[0]} left while the model was being planned. Try again.")
        deployment = self.deployment = Deployment(
            planned=planned,
            epoch=self._epoch,
            computers=everyone,
            changed=self._deployment_changed,
            packing=self._packing,
            link_rate=self._link_rate,
        )
        pipeline = await deployment.start()
        self._generator = Generator()
        self._generator.attach(
            pipeline,
            context=planned.context,
            room=deployment.room,
            chunk_tokens=planned.chunk_tokens,
        )
        self._enter("ready", "Ready")
        return deployment

    def _deployment_changed(self) -> None:
        if self.deployment is not None and self.state.phase in ("planning", *DEPLOYING):
            self.state.phase = self.deployment.phase
            self.state.message = self.deployment.message
        self._changed()

    def _link_rate(self, node: NodeId) -> float | None:
        """Bytes a second to a computer, as measured last."""
        link = self.measurements.link(self._computers.local.node_id, node)
        return link.bytes_per_s if link is not None else None

    async def _retire(self) -> None:
        deployment, self.deployment, self._generator = self.deployment, None, None
        if deployment is not None:
            await deployment.stop()

    @asynccontextmanager
    async def borrowed(self, request: PlanRequest) -> AsyncIterator[None]:
        """Unload afterwards what is loaded for this request inside.

        What was asked for before is asked for again: the next prompt loads it.
        """
        before, deployment = self.request, self.deployment
        try:
            yield
        finally:
            async with self._turn:
                is_ours = self.request in (request, None)  # and nobody else has loaded another
                if is_ours and (self.deployment is None or self.deployment is not deployment):
                    await self._retire()
                    self.request, self.state = before, LoadState()
                    self._missing.clear()
                    self._changed()

    async def unload(self) -> None:
        """Free every computer's memory. A load that is under way ends."""
        if self._loading is not None:
            self._loading.cancel()
        async with self._turn:
            await self._retire()
            self.request, self.state = None, LoadState()
            self._missing.clear()
            self._changed()

    def _enter(self, phase: LoadPhase, message: str) -> None:
        self.state = LoadState(phase=phase, message=message, hashed=self.state.hashed)
        self._changed()

    # --- what happens meanwhile

    def step_failed(self, node_id: NodeId, failure: StepFailed) -> None:
        """A computer could not do a step; only one of the plan is believed."""
        deployment = self.deployment
        if deployment is not None and deployment.pipeline is not None and deployment.uses(node_id):
            deployment.pipeline.step_failed(failure)

    def unloaded(self, node_id: NodeId, name: str, epoch: int) -> bool:
        """A computer gave up its layers of a plan. Returns whether the loaded model needed them."""
        if self.deployment is None or self.deployment.epoch != epoch:
            return False
        return self.lost(node_id, name, "lost its part of the model")

    @property
    def uses_this_computer(self) -> bool:
        """Whether the own stage process works for this master."""
        deployment = self.deployment
        return deployment is not None and deployment.uses(self._computers.local.node_id)

    def observe(self, timings: Timings) -> None:
        """Learn from an answer how fast the computers of the plan really are."""
        deployment = self.deployment
        if deployment is None or len(timings.stages) != len(deployment.tasks):
            return
        planned = deployment.planned
        for task, measured in zip(deployment.tasks, timings.stages, strict=True):
            stage = task.stage
            self.measurements.observe(
                stage.node,
                device_of(stage.device),
                planned.model.config,
                planned.scheme,
                measured.compute_ms,
                layers=stage.layers,
                head=stage.head,
                cache=planned.cache,
            )

    def uses(self, device: DeviceId) -> bool:
        """Whether a device of this computer has a stage of this master's plan."""
        deployment = self.deployment
        return deployment is not None and deployment.uses(self._computers.local.node_id, device)

    def stage_died(self, device: DeviceId) -> bool:
        """A stage process of this computer is gone. Returns whether the loaded model needed it."""
        if not self.uses(device):
            return False
        local = self._computers.local
        place = place_name(local.name, device, local.devices)
        return self.lost(local.node_id, place, "lost its engine")

    def lost(self, node_id: NodeId, name: str, how: str) -> bool:
        """A computer is gone. Returns whether the loaded model needed it."""
        self.measurements.forget(node_id)
        deployment = self.deployment
        if deployment is None or not deployment.uses(node_id):
            return False
        self._missing.add(node_id)
        if deployment.pipeline is not None:
            deployment.fail(computer_lost(name, how))
        else:
            deployment.fail(
                PeerLostError(
                    f"{name} {how} before the model was ready. What it has received stays there:"
                    " load the model again to go on.",
                    name=name,
                )
            )
        return True


def without_constraints(request: PlanRequest) -> PlanRequest:
    """The same model on whoever is left: a plan by hand or a number may not be possible now."""
    return PlanRequest(
        model=request.model,
        shape=request.shape,
        scheme=request.scheme,
        context=request.context,
        cache=request.cache,
    )
