"""The master as its clients see it: from a request for a model to a pipeline that answers prompts.

One model is loaded at a time, by one plan.
"""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

from potluck.api.values.schema import PlanRequest
from potluck.cluster.computer import Computers
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.turns import Turns
from potluck.cluster.events import (
    ComputerLost,
    Events,
    ModelChanged,
    StageLost,
    StepRefused,
)
from potluck.cluster.loss import computer_lost
from potluck.cluster.master.carrying import Carrying
from potluck.cluster.master.deadlines import DEADLINES, PlanningDeadlines
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.kept import KeptMeasurements
from potluck.cluster.master.loader import Loader, LoadState
from potluck.cluster.master.measurements import Measurements
from potluck.cluster.master.models import Models
from potluck.cluster.master.packing import Packing
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.planning import Planner
from potluck.cluster.master.transitions import apply
from potluck.cluster.master.vocabulary import (
    Check,
    Deploy,
    ImproveWish,
    LoadWish,
    PromptWish,
    RecoveryWish,
    ReturnWish,
    UnloadWish,
    no_check,
)
from potluck.cluster.master.weighing import Weighing

logger = logging.getLogger(__name__)

_Granted: TypeAlias = tuple[Deployment, Generator] | None


class Master(Carrying):
    """Plans and loads one model on the computers of a home."""

    def __init__(
        self,
        *,
        computers: Computers,
        models: Models,
        events: Events,
        packing: Packing | None = None,
        use: DeviceUse | None = None,
        deadlines: PlanningDeadlines = DEADLINES,
        kept: KeptMeasurements | None = None,
    ) -> None:
        """Make a master that has loaded nothing.

        Args:
            computers: this computer and the connected workers.
            models: opens the models that are asked for.
            events: receives `ModelChanged` and `Notice`.
            packing: packs weights before they are sent; None: they are sent as the files have them.
            use: told which devices of this computer have a stage of this master's plan.
            deadlines: how long planning waits for computers, and how long it may search.
            kept: what the node before has measured.
        """
        self._planner = Planner(computers, models, deadlines, kept)
        loader = Loader(
            computers,
            self._planner,
            events,
            recover=self._recover,
            deadlines=deadlines,
            packing=packing,
        )
        super().__init__(computers, loader, events, use if use is not None else DeviceUse())
        self._weighing = Weighing(
            lambda: apply(self._state, self._present()),
            lambda: self._is_broken,
            lambda: self._ask(ImproveWish(ticket=self._callers.ticket())),
            deadlines.improve_s,
        )

    # --- what clients see

    @property
    def measurements(self) -> Measurements:
        return self._planner.measurements

    @property
    def request(self) -> PlanRequest | None:
        """The request that the next prompt runs on; None: no model was asked for."""
        return self._state.asked

    @property
    def turns(self) -> Turns | None:
        """Who is answered and who waits; None: nothing was loaded yet."""
        return self._loader.turns

    @property
    def is_ready(self) -> bool:
        return self._state.is_ready and not self._is_broken

    @property
    def holds_anything(self) -> bool:
        """Whether any computer has layers in memory for this master."""
        return self.deployment is not None or bool(self._state.held)

    @property
    def state(self) -> LoadState:
        """How far the model is on its way to being ready, or why it failed."""
        state = self._state
        if state.is_preparing or isinstance(state.work, Deploy):
            return self._loader.progress
        if (error := state.failure) is not None:
            return LoadState(phase="failed", message=error.message, error=error)
        if state.deployed is not None and state.deployed.is_loaded:
            return LoadState(phase="ready", message="Ready")
        return LoadState()

    @property
    def is_used(self) -> bool:
        """Whether a model is planned, loaded or answers at this moment."""
        turns = self.turns
        return self._state.work is not None or (turns is not None and turns.running > 0)

    @property
    def is_at_rest(self) -> bool:
        """Whether nobody waits: nothing is planned, loaded or answered at this moment."""
        if self.deployment is not None:
            return self._is_idle
        return self._state.work is None and not self._state.wishes

    # --- what clients ask for

    async def plan(self, request: PlanRequest) -> Planned:
        """Measure the computers and make a plan without loading it.

        Raises:
            ModelError, PlanError, UsageError: the model cannot be read, or there is no such plan.
        """
        return await self._planner.plan(
            request, settle=not self._state.missing, is_answering=self._loader.is_answering
        )

    async def load(
        self, request: PlanRequest, *, anew: bool = False, check: Check = no_check
    ) -> Deployment:
        """Load this model as requested, unless it is loaded in this way already.

        Args:
            request: the model, and how to load it.
            anew: load it even if it is loaded already, because something else has changed.
            check: called with the context in tokens before anything is measured; may raise to refuse the load.

        Raises:
            PotluckError: it cannot be loaded. The model before it still is, unless it had to make room already.
        """
        ticket = self._callers.ticket()
        granted = await self._ask(LoadWish(ticket=ticket, request=request, anew=anew, check=check))
        assert granted is not None
        return granted[0]

    async def ready(self, default: PlanRequest) -> tuple[Deployment, Generator]:
        """The deployment and its generator. The model is loaded again first if its pipeline broke.

        Raises:
            PotluckError: no model can be loaded.
        """
        granted = await self._ask(PromptWish(ticket=self._callers.ticket(), default=default))
        assert granted is not None
        return granted

    async def _recover(self) -> None:
        """Load the model again for answers whose pipeline broke, or raise PotluckError."""
        await self._ask(RecoveryWish(ticket=self._callers.ticket()))

    def weigh(self) -> None:
        """Weigh the plan in force, if nothing else is asked for, with computers that came or leave."""
        here = (self._computers.local, *self._computers.available())
        if self.shortages.look({computer.node_id: computer.devices for computer in here}):
            self._events.publish(ModelChanged())
        if self._weighing.is_under_way and self._computers.leaving():
            self.happened(self._present())  # what is under way may have to give way
        self._weighing.look()
        if self._is_broken and self.replicas.ready is not None:
            self.happened(self._present())  # no answer has told it: they go on at other replicas
        self.readers.look(may_choose=self._is_idle and not self.viewers.is_choosing)
        self.viewers.look(may_choose=self._is_idle and not self.readers.is_choosing)
        self.replicas.look()
        is_held_once = self.deployment is not None and self.deployment.planned.replicas_wanted == 1
        is_spared = is_held_once and self._is_idle
        self.spares.look(self.deployment if is_spared else None, time.monotonic())

    @property
    def _is_idle(self) -> bool:
        state = self._state
        is_at_rest = state.is_ready and state.work is None and not state.wishes
        return (
            is_at_rest
            and not self._weighing.is_under_way
            and self._loader.is_idle
            and not self._is_broken
        )

    async def unload(self) -> None:
        """Free the model's memory on every computer. A load that is under way ends."""
        await self._ask(UnloadWish(ticket=self._callers.ticket()))

    async def leave(self, *, keeps_layers: bool) -> None:
        """End every answer and load, because this node ends.

        `keeps_layers`: the workers keep theirs for a while, so that a master that is started again finds them.
        """
        await self._ask(UnloadWish(ticket=self._callers.ticket(), keeps_layers=keeps_layers))

    @asynccontextmanager
    async def borrowed(self, request: PlanRequest) -> AsyncIterator[None]:
        """Load a model for the length of a `with` block: it is unloaded at the end of the block.

        The request that was in force before is in force again afterwards: the next prompt loads it.
        """
        asked, deployed = self._state.asked, self._state.deployed
        try:
            yield
        finally:
            epoch = deployed.epoch if deployed is not None else None
            await self.give_back(request, asked=asked, epoch=epoch)

    async def give_back(
        self, request: PlanRequest, *, asked: PlanRequest | None = None, epoch: int | None = None
    ) -> None:
        """Unload the model of this request, unless another one was asked for since, or `epoch` is still in force.

        `asked` is the request that the next prompt loads then; None: the prompt's own.
        """
        ticket = self._callers.ticket()
        await self._ask(ReturnWish(ticket=ticket, lent=request, asked=asked, epoch=epoch))

    def lost(self, event: ComputerLost | StageLost) -> None:
        """A computer, or a stage of it, was lost: its measured links may not be valid any more."""
        self.measurements.lost(event.node_id)
        name = event.name if isinstance(event, ComputerLost) else event.place
        for beside in self._beside:
            beside.lost(event, computer_lost(name, event.how))
        self.happened(event)

    def step_refused(self, event: StepRefused) -> None:
        """A computer could not do a step. Reports of computers outside of the plan are ignored."""
        deployment, node_id = self.deployment, event.node_id or self._computers.local.node_id
        if any(beside.step_failed(node_id, event.failure) for beside in self._beside):
            return
        if deployment is not None and deployment.pipeline is not None and deployment.uses(node_id):
            deployment.pipeline.step_failed(event.failure)
