"""From a request for a model to a plan: who is waited for, in what quality, who computes what."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from potluck.api.schema import PlanRequest
from potluck.cluster.computer import Computer
from potluck.cluster.device_names import computer_of
from potluck.cluster.master.deployment import Planned
from potluck.cluster.master.measurements import Measurements, unmeasured_devices
from potluck.errors import (
    InvalidLayersError,
    NotEnoughMemoryError,
    OutOfMemoryError,
    UsageError,
    format_bytes,
)
from potluck.model.footprint import working_bytes
from potluck.model.nearest import explain_more_bits, nearest_schemes
from potluck.model.schemes import AskedScheme, Cache, Scheme, schemes_to_try, weight_bytes
from potluck.plan.byhand import check_sum
from potluck.plan.cost import DeviceCost, ModelShape
from potluck.plan.placement import computer_names, lacking_memory, make_plan
from potluck.plan.shape import shape_of
from potluck.store.registry import LocalModel

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT = 8192  # tokens; a longer one is a choice, since it costs memory everywhere
WAIT_FOR_WORKERS_S = 120.0  # that were asked for by number
WAIT_FOR_NAMES_S = 20.0  # that were asked for by name: discovery takes a second or two
SETTLE_S = 3.0  # mDNS answers within a second; the connections take less
_BEST_FIRST: tuple[Scheme, ...] = ("bf16", "int8", "int4-head8", "int4")


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


class Planner:
    """Plans on the computers there are; keeps what it measured."""

    def __init__(self, computers: Computers) -> None:
        self.measurements = Measurements()
        self._computers = computers

    async def plan(self, request: PlanRequest, model: LocalModel) -> Planned:
        """Measure, and decide who would compute what, in the best quality that fits if that is left open.

        Raises:
            PlanError, UsageError: why there is no such plan.
            EngineError: no engine starts on this computer.
        """
        await self._computers.local.look()
        schemes = schemes_of(request.scheme, model)
        note = explain_more_bits(model.config) if request.scheme == "auto" else ""
        for scheme in schemes[:-1]:
            try:
                return await self._plan_in(scheme, request, model, note)
            except (NotEnoughMemoryError, OutOfMemoryError) as error:
                logger.info("scheme=%s does not fit: %s", scheme, error)
                note = _explain_fewer_bits(scheme, error)
        return await self._plan_in(schemes[-1], request, model, note)

    async def _plan_in(
        self, scheme: Scheme, request: PlanRequest, model: LocalModel, note: str
    ) -> Planned:
        self._check_room(scheme, request, model)  # else there is nothing to measure
        workers = list(self._computers.available())
        computers = [self._computers.local, *workers]
        notes = [note] if note else []
        devices = await self.measurements.device_costs(
            computers,
            model.manifest.config,
            model.config,
            scheme,
            cache=request.cache,
            working=working_bytes(model.config, context_of(request, model)),
            left_out=notes.append,
        )
        links = await self.measurements.links(self._computers.local, workers)
        plan = make_plan(
            _shape(scheme, request, model),
            _counted(devices, scheme, request, model),
            links,
            layers=request.layers,
            min_workers=request.workers,
        )
        return Planned(
            model=model,
            scheme=scheme,
            cache=request.cache,
            note="\n".join(notes),
            context=context_of(request, model),
            plan=plan,
            names=computer_names(devices),
        )

    def _check_room(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> None:
        """Refuse what the computers together cannot hold, before anything is measured.

        Raises:
            NotEnoughMemoryError: it says in which scheme the model would fit, if there is one.
        """
        if not (lacking := self._lacking(scheme, request, model)):
            return
        needed = _shape(scheme, request, model).model_memory
        fitting = (
            smaller
            for smaller in _BEST_FIRST
            if _shape(smaller, request, model).model_memory < needed
            and not self._lacking(smaller, request, model)
        )
        raise NotEnoughMemoryError(needed, needed - lacking, fits_in=next(fitting, None))

    def _lacking(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> int:
        """Bytes that are missing for the model; 0: none, as far as is known."""
        devices = unmeasured_devices(
            (self._computers.local, *self._computers.available()),
            model.config,
            scheme,
            working=working_bytes(model.config, context_of(request, model)),
        )
        if devices is None:
            return 0
        shape = _shape(scheme, request, model)
        return lacking_memory(shape, _counted(devices, scheme, request, model))

    async def wait(self, request: PlanRequest, model: LocalModel, *, settle: bool) -> None:
        """Wait for the workers that were asked for.

        Args:
            request: names them, or says how many.
            model: whose layers they are to have.
            settle: where the request does neither, give who is just being found a moment.

        Raises:
            UsageError, InvalidLayersError: they did not come in time, or need not.
        """
        if request.layers is not None:
            check_sum(request.layers, model.config.num_layers)
        names = {computer_of(name).casefold() for name, _ in request.layers or ()}
        names.discard(self._computers.local.name.casefold())

        def all_there() -> bool:
            here = self._computers.available()
            return len(here) >= request.workers and names <= {c.name.casefold() for c in here}

        if not request.workers and not names:
            if settle:
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


def context_of(request: PlanRequest, model: LocalModel) -> int:
    """How many tokens a conversation may have."""
    return request.context or min(model.config.max_position, DEFAULT_CONTEXT)


def _explain_fewer_bits(scheme: Scheme, error: NotEnoughMemoryError | OutOfMemoryError) -> str:
    """Why not in this scheme, with the numbers of what refused it."""
    match error.data:
        case {"computer": str(name), "needed": int(needed), "available": int(available)}:
            why = f"{name}'s share needs {format_bytes(needed)} with its cache, and it offers"
        case {"computer": None, "needed": int(needed), "available": int(available)}:
            why = f"the model needs {format_bytes(needed)} with its cache, and your computers offer"
        case _:  # this computer has no room for a single layer
            return f"In {scheme} the model does not fit; this is the best quality that fits."
    return f"In {scheme} {why} {format_bytes(available)}; this is the best quality that fits."


def _shape(
    scheme: Scheme, request: PlanRequest, model: LocalModel, cache: Cache | None = None
) -> ModelShape:
    context = context_of(request, model)
    return shape_of(model.config, scheme, context=context, cache=cache or request.cache)


def _counted(
    devices: Sequence[DeviceCost], scheme: Scheme, request: PlanRequest, model: LocalModel
) -> list[DeviceCost]:
    """The devices with so much memory as the layers of the shape may take there.

    A GPU keeps 16 bits where a CPU may keep 8: with larger caches it has room for fewer layers.
    """
    counted = _shape(scheme, request, model).layer_memory
    kept = _shape(scheme, request, model, "full").layer_memory
    share = min(1.0, *(here / there for here, there in zip(counted, kept, strict=True)))
    return [
        device
        if device.device.startswith("cpu")
        else replace(device, memory=int(share * device.memory))
        for device in devices
    ]


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
