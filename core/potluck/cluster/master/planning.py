"""Turn a request for a model into a plan: choose the scheme, measure, place the layers."""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from potluck.api.values.schema import LoadPhase, PlanRequest
from potluck.cluster.computer import Computer, Computers
from potluck.cluster.master.ages import naming_old
from potluck.cluster.master.arrivals import Arrivals
from potluck.cluster.master.asked import (
    beyond_training,
    context_of,
    counted_devices,
    schemes_of,
    shape_asked,
)
from potluck.cluster.master.constraints import without_constraints
from potluck.cluster.master.deadlines import DEADLINES, PlanningDeadlines
from potluck.cluster.master.kept import KeptMeasurements
from potluck.cluster.master.measurements import PROFILE_TOKENS, Measurements
from potluck.cluster.master.memory_together import MemoryTogether, explain_fewer_bits
from potluck.cluster.master.models import Models
from potluck.cluster.master.planned import Planned, sizes_of
from potluck.cluster.master.quantisations import Choice, Need, choose_quantisation
from potluck.cluster.master.searching import search_in_thread
from potluck.cluster.master.sharing_out import (
    check_replicas,
    may_have_readers,
    may_have_viewer,
    share_out,
    viewing_of,
)
from potluck.cluster.master.vocabulary import Check, no_check
from potluck.errors import (
    InvalidLayersError,
    NotEnoughMemoryError,
    OutOfMemoryError,
    PlanError,
    UsageError,
)
from potluck.ids import NodeId
from potluck.model.footprint import working_bytes
from potluck.model.nearest import explain_more_bits
from potluck.model.schemes import Cache, Scheme
from potluck.plan.apart import Reading, Sizes, reading_beside, told_ms
from potluck.plan.cost import DeviceCost
from potluck.plan.labels import computer_names
from potluck.plan.placement import make_plan
from potluck.plan.replicas import apart_from
from potluck.plan.stages import Plan
from potluck.plan.sums import pairs_to_measure
from potluck.store.registry import LocalModel

logger = logging.getLogger(__name__)


class Enter(Protocol):
    """Takes the phase that a load enters, and how much of the model is read, from 0 to 1."""

    def __call__(self, phase: LoadPhase, message: str, done: float | None = None) -> None: ...


class Planner:
    """Makes plans for the available computers, and keeps what it measured."""

    def __init__(
        self,
        computers: Computers,
        models: Models,
        deadlines: PlanningDeadlines = DEADLINES,
        kept: KeptMeasurements | None = None,
    ) -> None:
        self.measurements = Measurements(kept=kept)
        self._computers = computers
        self._arrivals = Arrivals(computers, deadlines)
        self._models = models
        self._deadlines = deadlines
        self._memory = MemoryTogether(computers, deadlines.search_s)

    async def plan(
        self,
        request: PlanRequest,
        *,
        settle: bool,
        check: Check = no_check,
        is_recovery: bool = False,
        avoid: Container[NodeId] = (),
        near: Planned | None = None,
        enter: Enter = lambda phase, message, done=None: None,
        is_answering: bool = False,
    ) -> Planned:
        """Open the model, wait for the computers, measure them and make a plan.

        Args:
            request: with scheme "auto", the plan is in the best scheme that fits.
            settle: wait a moment for computers that are being discovered, unless the request says
                which or how many it needs.
            check: called with the context before anything is measured.
            is_recovery: answers wait for this plan. The request has a scheme. Only computers that
                were measured before take part, unless the model does not fit without the others.
            avoid: these computers take part only if the model does not fit without.
            near: the plan before, whose layers stay where they are if that is nearly as fast.
            enter: called at the beginning of each phase, and with how much of the model is read.
            is_answering: people read answers now. No sums are measured beside these.

        Raises:
            PlanError, UsageError: there is no such plan.
            ModelError: the model cannot be read.
            EngineError: no stage process starts on this computer.
        """
        check_replicas(request)
        stays = near if is_recovery or not settle else None
        choice = await self._choice(request, stays)
        model = await self._models.open(
            request,
            lambda name, done: enter("hashing", f"Reading {name}", done),
            choice.file,
        )
        check(context_of(request, model))
        if is_recovery:
            assert request.scheme != "auto"
            enter("planning", "Looking for other computers")
            return await self._plan_recovery(request.scheme, request, model, avoid, near)
        enter("waiting", "Looking for your computers")
        await self._arrivals.wait(request, model.config.num_layers, settle=settle)
        enter("planning", "Measuring the computers")
        await self._computers.local.look()
        schemes = schemes_of(request.scheme, model)
        plan_in = partial(self._plan_in, avoid=avoid, near=near, measures_sums=not is_answering)
        notes = [choice.note]
        note = explain_more_bits(model.config) if request.scheme == "auto" else ""
        for scheme in schemes[:-1]:
            try:
                return await plan_in(scheme, request, model, [*notes, note])
            except (NotEnoughMemoryError, OutOfMemoryError) as error:
                logger.info("scheme=%s does not fit: %s", scheme, error)
                note = explain_fewer_bits(scheme, error)
        return await plan_in(schemes[-1], request, model, [*notes, note])

    async def _choice(self, request: PlanRequest, near: Planned | None) -> Choice:
        """Which of the model's quantisations to open. Answers go on with the one of the plan `near`."""
        files = await self._models.find(request)
        if len(files) < 2:
            return Choice(files[0] if files else None)
        if near is not None and near.model.folder in files:
            return Choice(near.model.folder)
        await self._computers.local.look()

        async def need(scheme: Scheme, model: LocalModel) -> Need:
            lacking = await self._memory.lacking(scheme, request, model)
            return Need(shape_asked(scheme, request, model).model_memory, lacking)

        def scheme_of(model: LocalModel) -> Scheme:
            best, *others = schemes_of(request.scheme, model)
            # Small models stay in 32 bits where there is room, which is no reason to take other files.
            return others[0] if best == "f32" and others else best

        return await choose_quantisation(files, scheme_of=scheme_of, need=need)

    async def _plan_recovery(
        self,
        scheme: Scheme,
        request: PlanRequest,
        model: LocalModel,
        avoid: Container[NodeId],
        near: Planned | None,
    ) -> Planned:
        """Plan with what is known and at hand, so that answers wait as shortly as possible.

        Raises:
            NotEnoughMemoryError: the model does not fit, and no computer came back in time.
        """
        measured = self._measured(model, scheme, request.cache)
        known = [computer for computer in measured if computer.node_id not in avoid]
        for asked in dict.fromkeys((request, without_constraints(request))):
            with suppress(PlanError, UsageError):  # a computer that it asks for may be lost
                return await self._place(scheme, asked, model, known, avoid=avoid, near=near)
        request = without_constraints(request)
        await self._computers.local.look()
        ends_at = asyncio.get_running_loop().time() + self._deadlines.return_s
        while True:
            workers = list(self._computers.available())
            others = [computer for computer in workers if computer.node_id not in avoid]
            with suppress(PlanError, UsageError):
                return await self._place(scheme, request, model, others, avoid=avoid)
            try:
                return await self._place(scheme, request, model, workers, near=near)
            except NotEnoughMemoryError:
                if not await self._arrivals.somebody_came(workers, ends_at):
                    await self._memory.check(
                        scheme, request, model
                    )  # its error says which would fit
                    raise

    def _measured(self, model: LocalModel, scheme: Scheme, cache: Cache) -> list[Computer]:
        """The available workers that were measured on this model."""
        return [
            computer
            for computer in self._computers.available()
            if self.measurements.has_profiles(computer, model.config, scheme, cache)
        ]

    async def plan_without(self, lost: NodeId, planned: Planned) -> Plan | None:
        """The plan that a recovery would make if this worker were lost; None: the model would not fit."""
        request = PlanRequest(scheme=planned.scheme, cache=planned.cache, context=planned.context)
        model = planned.model
        measured = self._measured(model, planned.scheme, planned.cache)
        known = [computer for computer in measured if computer.node_id != lost]
        try:
            return (await self._place(planned.scheme, request, model, known, near=planned)).plan
        except (PlanError, UsageError):
            return None

    async def _devices(
        self,
        scheme: Scheme,
        request: PlanRequest,
        model: LocalModel,
        workers: Sequence[Computer],
        left_out: Callable[[str], None],
    ) -> list[DeviceCost]:
        """What this computer and these workers lend, and how fast they are; `left_out` is told who is not used, and why."""
        return await self.measurements.device_costs(
            [self._computers.local, *workers],
            model.manifest.config,
            model.config,
            scheme,
            cache=request.cache,
            working=working_bytes(model.config, context_of(request, model)),
            left_out=left_out,
        )

    async def reading_beside(self, planned: Planned) -> Reading | None:
        """Who could read long prompts for a plan in force, which stays as it is; None: nobody who pays."""
        sizes, devices = await self._weighed_beside(planned)
        viewers = planned.viewing.plan.stages if planned.viewing is not None else ()
        busy = {stage.node for stage in viewers}
        devices = [replace(d, memory=0) if d.node in busy else d for d in devices]
        search = partial(reading_beside, sizes, devices, planned.plan)
        return await search_in_thread(search, limit_s=self._deadlines.search_s)

    async def with_viewing(self, planned: Planned) -> Planned:
        """A plan in force with who could read pictures for its first stage, if somebody pays."""
        sizes, devices = await self._weighed_beside(planned)
        viewing = viewing_of(sizes, devices, planned.plan, planned.reading, among="others")
        if viewing is not None:
            logger.info("a viewer is chosen: %s", viewing.explanation)
        return replace(planned, viewing=viewing)

    async def _weighed_beside(self, planned: Planned) -> tuple[Sizes, list[DeviceCost]]:
        """The sizes of a plan in force, and all devices that are here now."""
        scheme, model = planned.scheme, planned.model
        request = PlanRequest(scheme=scheme, cache=planned.cache, context=planned.context)
        workers = list(self._computers.available())
        await self.measurements.links.measure(self._computers.local, workers)
        devices = await self._devices(scheme, request, model, workers, lambda why: None)
        shape, links = shape_asked(scheme, request, model), self.measurements.links.known()
        sizes = sizes_of(model.config, scheme, planned.cache, shape, links, planned.context)
        return sizes, counted_devices(devices, scheme, request, model)

    async def plan_among(self, nodes: frozenset[NodeId], planned: Planned) -> Plan:
        """The plan of a replica on these computers, which hold nothing of this master's model.

        Raises:
            PlanError, UsageError: they have no room for it.
        """
        request = PlanRequest(scheme=planned.scheme, cache=planned.cache, context=planned.context)
        here = self._computers.available()
        workers = [computer for computer in here if computer.node_id in nodes]
        await self.measurements.links.measure(self._computers.local, workers)
        place = partial(self._place, planned.scheme, request, planned.model, workers)
        return (await place(among=nodes)).plan

    async def _plan_in(
        self,
        scheme: Scheme,
        request: PlanRequest,
        model: LocalModel,
        notes: Sequence[str],
        *,
        avoid: Container[NodeId],
        near: Planned | None,
        measures_sums: bool,
    ) -> Planned:
        await self._memory.check(scheme, request, model)  # before measuring, which takes longer
        workers = list(self._computers.available())
        await self.measurements.links.measure(self._computers.local, workers)
        place = partial(
            self._place,
            scheme,
            request,
            model,
            workers,
            notes=notes,
            near=near,
            may_choose=True,
            measures_sums=measures_sums,
        )
        if avoid:
            with suppress(PlanError, UsageError):  # it does not fit without those to be avoided
                return await place(avoid=avoid)
        return await place()

    async def _place(
        self,
        scheme: Scheme,
        request: PlanRequest,
        model: LocalModel,
        workers: Sequence[Computer],
        *,
        avoid: Container[NodeId] = (),
        notes: Sequence[str] = (),
        near: Planned | None = None,
        may_choose: bool = False,
        measures_sums: bool = False,
        among: frozenset[NodeId] | None = None,
    ) -> Planned:
        """Plan for this computer and these workers. The memory of those in `avoid` is not used.

        `may_choose`: one of them may read prompts for the others. `measures_sums`: of the groups that may pay. `among`: who may have layers; None: all of them.
        """
        notes = [note for note in notes if note]
        notes += [
            f"{name} is left out: it {why}." for name, why in self._computers.withheld().items()
        ]
        devices = await self._devices(scheme, request, model, workers, notes.append)
        devices = [replace(d, memory=0) if d.node in avoid else d for d in devices]
        if among is not None:
            devices = apart_from(devices, among)
        shape, links = shape_asked(scheme, request, model), self.measurements.links.known()
        if measures_sums:
            pairs = pairs_to_measure(
                shape, devices, links, request.layers, prefill_tokens=PROFILE_TOKENS
            )
            everyone = {c.node_id: c for c in (self._computers.local, *workers)}
            await self.measurements.sums.measure(
                [(everyone[devices[a].node], everyone[devices[b].node]) for a, b in pairs]
            )
        answering = partial(
            make_plan,
            shape,
            links=links,
            sums=self.measurements.sums.known(),
            layers=request.layers,
            min_workers=request.workers,
            users=-(-request.users // request.replicas),
            measured_tokens=PROFILE_TOKENS,
            near=near.plan.stages if near is not None and near.is_of(model, scheme) else (),
        )
        context = context_of(request, model)
        sizes = sizes_of(model.config, scheme, request.cache, shape, links, context, request.prompt)
        search = partial(
            share_out,
            request,
            sizes,
            counted_devices(devices, scheme, request, model),
            may_choose=may_choose,
            answering=answering,
        )
        limits = self._deadlines
        limit_s = limits.search_s if request.replicas == 1 else limits.replicas_s
        try:
            shared = await search_in_thread(search, limit_s=limit_s)
        except InvalidLayersError as error:  # it may name a computer that was lost meanwhile
            raise InvalidLayersError(" ".join((error.message, *notes)), **error.data) from None
        except (NotEnoughMemoryError, UsageError) as error:
            raise naming_old(error, workers, model.config, scheme) from None
        return Planned(
            model=model,
            scheme=scheme,
            cache=request.cache,
            note="\n".join(notes),
            warnings=(*beyond_training(request, model), *shared.warnings),
            context=context,
            plan=shared.plan,
            names=computer_names(devices),
            prompt=sizes.prompt,
            first_token_ms=told_ms(sizes, shared.plan, shared.reading),
            reading=shared.reading,
            viewing=shared.viewing,
            may_have_readers=may_have_readers(request),
            may_have_viewer=may_have_viewer(request),
            readers_weighed=may_choose,
            replicas=shared.replicas,
            replicas_wanted=request.replicas,
            together_tokens_per_s=shared.together_tokens_per_s,
        )
