"""The master's part: from a request for a model to a pipeline that answers.

One model at a time. What was asked for is remembered: when a computer of the plan is lost, the
answer under way fails with its name, and the next prompt plans again with who is left. When a
computer comes back that the plan had to do without, the next load uses it again.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from potluck.api.openai import Timings
from potluck.api.schema import LoadPhase, PlanRequest
from potluck.cluster.deployment import Deployment, Member, Planned
from potluck.cluster.device_names import computer_of, device_of, place_name
from potluck.cluster.generation import Generator
from potluck.cluster.pipeline import computer_lost
from potluck.cluster.quantisation import Quantisation
from potluck.cluster.survey import Survey, Surveyed, shape_of
from potluck.errors import (
    InvalidLayersError,
    NotEnoughMemoryError,
    OutOfMemoryError,
    PeerLostError,
    PotluckError,
    UsageError,
    format_bytes,
)
from potluck.ids import NodeId
from potluck.model.footprint import working_bytes
from potluck.model.nearest import nearest_schemes
from potluck.model.schemes import AskedScheme, Scheme, schemes_to_try, weight_bytes
from potluck.model.shapes import SHAPES
from potluck.plan.cost import ModelShape
from potluck.plan.placement import computer_names, make_plan
from potluck.store.registry import LocalModel, random_model
from potluck.wire.messages import DeviceId, StepFailed

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192  # tokens; a longer one is a choice, since it costs memory everywhere
WAIT_FOR_WORKERS_S = 120.0  # that were asked for by number
WAIT_FOR_NAMES_S = 20.0  # that were asked for by name: discovery takes a second or two
DEPLOYING: tuple[LoadPhase, ...] = ("quantising", "streaming", "loading")
SETTLE_S = 3.0  # mDNS answers within a second; the connections take less


class Computer(Member, Surveyed, Protocol):
    """A computer that can be measured and can hold a stage."""


class Computers(Protocol):
    """Who is there. `changed` is notified whenever that changes."""

    changed: asyncio.Condition

    @property
    def local(self) -> Computer: ...

    def available(self) -> Sequence[Computer]:
        """Connected workers that lend themselves now."""
        ...

    def expected(self) -> int:
        """How many paired computers may still turn up shortly."""
        ...


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
        quantisation: Quantisation | None = None,
        shapes: Mapping[str, Mapping[str, object]] = SHAPES,
    ) -> None:
        self.state = LoadState()
        self.deployment: Deployment | None = None
        self.request: PlanRequest | None = None
        self._computers = computers
        self._open_model = open_model
        self._resolve = resolve
        self._changed = changed
        self._quantisation = quantisation
        self._shapes = shapes  # that can be measured with random weights
        self._survey = Survey()
        self._generator: Generator | None = None
        self._epoch = secrets.randbelow(1 << 30)  # no two masters' plans are mistaken for another
        self._missing: set[NodeId] = set()  # lost from the plan asked for
        self._turn = asyncio.Lock()
        self._loading: asyncio.Task[Deployment] | None = None

    @property
    def survey(self) -> Survey:
        return self._survey

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
        await self._wait_for_workers(request)
        return await self._plan(request, model)

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

    async def _plan(self, request: PlanRequest, model: LocalModel) -> Planned:
        schemes = schemes_of(request.scheme, model)
        note = ""
        for scheme in schemes[:-1]:
            needed = self._shape(scheme, request, model)
            lent = self._lent()
            try:
                if lent is None or needed.model_memory <= lent:  # else there is nothing to measure
                    return await self._plan_in(scheme, request, model, note)
            except (NotEnoughMemoryError, OutOfMemoryError) as error:
                logger.info("scheme=%s does not fit: %s", scheme, error)
            note = (
                f"In {scheme} the model needs {format_bytes(needed.model_memory)} with its cache,"
                f" and your computers lend {format_bytes(self._lent() or 0)}; this is the best"
                " quality that fits."
            )
        return await self._plan_in(schemes[-1], request, model, note)

    async def _plan_in(
        self, scheme: Scheme, request: PlanRequest, model: LocalModel, note: str
    ) -> Planned:
        context = self._context(request, model)
        workers = list(self._computers.available())
        computers = [self._computers.local, *workers]
        notes = [note] if note else []
        seats = await self._survey.seats(
            computers,
            model.manifest.config,
            model.config,
            scheme,
            working=working_bytes(model.config, context),
            left_out=notes.append,
        )
        links = await self._survey.links(self._computers.local, workers)
        plan = make_plan(
            self._shape(scheme, request, model),
            seats,
            links,
            layers=request.layers,
            min_workers=request.workers,
        )
        return Planned(
            model=model,
            scheme=scheme,
            cache=request.cache,
            note="\n".join(notes),
            context=context,
            plan=plan,
            names=computer_names(seats),
        )

    def _shape(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> ModelShape:
        computers = (self._computers.local, *self._computers.available())
        kinds = {device.kind for computer in computers for device in computer.devices}
        # A GPU keeps 16 bits; where there is one, the plan counts on no less.
        cache = request.cache if kinds <= {"cpu"} else "full"
        context = self._context(request, model)
        return shape_of(model.config, scheme, context=context, cache=cache)

    @staticmethod
    def _context(request: PlanRequest, model: LocalModel) -> int:
        return request.context or min(model.config.max_position, DEFAULT_CONTEXT)

    def _lent(self) -> int | None:
        """Bytes that all computers lend together; None: one has not looked at its devices yet."""
        computers = (self._computers.local, *self._computers.available())
        if not all(computer.devices for computer in computers):
            return None
        return sum(device.memory_free for computer in computers for device in computer.devices)

    async def _wait_for_workers(self, request: PlanRequest) -> None:
        names = {computer_of(name).casefold() for name, _ in request.layers or ()}
        names.discard(self._computers.local.name.casefold())

        def all_there() -> bool:
            here = self._computers.available()
            return len(here) >= request.workers and names <= {c.name.casefold() for c in here}

        if not request.workers and not names:
            if not self._missing:  # who was just lost is not waited for in the middle of a chat
                await self._settle()
            return
        limit = WAIT_FOR_WORKERS_S if request.workers else WAIT_FOR_NAMES_S
        try:
            async with asyncio.timeout(limit), self._computers.changed:
                await self._computers.changed.wait_for(all_there)
        except TimeoutError:
            here = ", ".join(c.name for c in self._computers.available()) or "none"
            if request.workers:
                raise UsageError(
                    f"{request.workers} other computers should take part, and within"
                    f" {limit:.0f} seconds these came: {here}. Start Potluck on the others,"
                    " pair them, and see `potluck devices`."
                ) from None
            raise InvalidLayersError(
                f"The layers name computers that are not here. Here are: {here}, and this one,"
                f" {self._computers.local.name}."
            ) from None

    async def _settle(self) -> None:
        """Just started, the node has not found everyone yet: give them a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S), self._computers.changed:
                await self._computers.changed.wait_for(lambda: not self._computers.expected())

    # --- loading

    async def load(self, request: PlanRequest) -> Deployment:
        """Have this model loaded as asked, unless it is already.

        Raises:
            PotluckError: why not. What was loaded before still is, if nothing had to make room yet.
        """
        async with self._turn:
            if self.is_ready and request == self.request and not self._can_improve():
                assert self.deployment is not None
                return self.deployment
            self._missing.clear()
            return await self._run(self._load(request))

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

    async def _load(self, request: PlanRequest) -> Deployment:
        try:
            model = await self._open(request)
            self._enter("waiting", "Looking for your computers")
            await self._wait_for_workers(request)
            self._enter("planning", "Measuring the computers")
            planned = await self._plan(request, model)
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
            members=everyone,
            changed=self._deployment_changed,
            quantisation=self._quantisation,
            link_rate=self._link_rate,
        )
        pipeline = await deployment.start()
        self._generator = Generator(
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
        link = self._survey.link(self._computers.local.node_id, node)
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
            self._survey.observe(
                stage.node,
                device_of(stage.device),
                planned.model.config,
                planned.scheme,
                measured.compute_ms / stage.predicted_ms if stage.predicted_ms else 1.0,
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
        self._survey.forget(node_id)
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


def schemes_of(asked: AskedScheme, model: LocalModel) -> tuple[Scheme, ...]:
    """The schemes that may be used, the preferred one first."""
    if asked != "auto":
        return (asked,)
    if nearest := nearest_schemes(model.config):
        return nearest
    if model.seed is not None:  # as if they were files of the usual 16 bits
        config = model.config
        tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
        return schemes_to_try(config, ("BF16",), weight_bytes(config, tensors, "bf16"))
    dtypes = {tensor.dtype for tensor in model.manifest.tensors}
    return schemes_to_try(model.config, dtypes, model.manifest.nbytes)


def without_constraints(request: PlanRequest) -> PlanRequest:
    """The same model on whoever is left: a plan by hand or a number may not be possible now."""
    return PlanRequest(
        model=request.model,
        shape=request.shape,
        scheme=request.scheme,
        context=request.context,
        cache=request.cache,
    )
