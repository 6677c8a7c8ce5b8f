"""From a request for a model to a plan: who is waited for, in what quality, who computes what."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Protocol, TypeVar

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

_T = TypeVar("_T")

DEFAULT_CONTEXT = 8192  # tokens; a longer one is a choice, since it costs memory everywhere
_BEST_FIRST: tuple[Scheme, ...] = ("bf16", "int8", "int4-head8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningDeadlines:
    """How long a plan waits for computers, and how long it is searched for; seconds."""

    workers_s: float = 120.0  # that were asked for by number
    names_s: float = 20.0  # that were asked for by name: discovery takes a second or two
    settle_s: float = 3.0  # mDNS answers within a second; the connections take less
    search_s: float = 2.0  # then the best plan so far is taken; 20 devices take about one second


DEADLINES = PlanningDeadlines()


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

    def __init__(self, computers: Computers, deadlines: PlanningDeadlines = DEADLINES) -> None:
        self.measurements = Measurements()
        self._computers = computers
        self._deadlines = deadlines

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
        await self._check_room(scheme, request, model)  # else there is nothing to measure
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
        search = partial(
            make_plan,
            _shape(scheme, request, model),
            _counted(devices, scheme, request, model),
            links,
            layers=request.layers,
            min_workers=request.workers,
        )
        plan = await search_in_thread(search, limit_s=self._deadlines.search_s)
        return Planned(
            model=model,
            scheme=scheme,
            cache=request.cache,
            note="\n".join(notes),
            context=context_of(request, model),
            plan=plan,
            names=computer_names(devices),
        )

    async def _check_room(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> None:
        """Refuse what the computers together cannot hold, before anything is measured.

        Raises:
            NotEnoughMemoryError: it says in which scheme the model would fit, if there is one.
        """
        if not (lacking := await self._lacking(scheme, request, model)):
            return
        needed = _shape(scheme, request, model).model_memory
        fits_in: Scheme | None = None
        for smaller in _BEST_FIRST:
            is_smaller = _shape(smaller, request, model).model_memory < needed
            if is_smaller and not await self._lacking(smaller, request, model):
                fits_in = smaller
                break
        raise NotEnoughMemoryError(needed, needed - lacking, fits_in=fits_in)

    async def _lacking(self, scheme: Scheme, request: PlanRequest, model: LocalModel) -> int:
        """Bytes that are missing for the model; 0: none, as far as is known."""
        devices = unmeasured_devices(
            (self._computers.local, *self._computers.available()),
            model.config,
            scheme,
            working=working_bytes(model.config, context_of(request, model)),
        )
        if devices is None:
            return 0
        counted = _counted(devices, scheme, request, model)
        search = partial(lacking_memory, _shape(scheme, request, model), counted)
        return await search_in_thread(search)

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
        limit = self._deadlines.workers_s if request.workers else self._deadlines.names_s
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
            async with asyncio.timeout(self._deadlines.settle_s), self._computers.changed:
                await self._computers.changed.wait_for(lambda: not self._computers.expected())


async def search_in_thread(search: Callable[..., _T], *, limit_s: float = inf) -> _T:
    """Search beside the event loop, so that nobody takes this node for dead meanwhile.

    A thread is enough: the search is mostly numpy, which gives way to the loop. It is told to `stop`
    at its time limit, or when nobody waits for it any more.
    """
    ends_at = time.monotonic() + limit_s
    is_left = threading.Event()
    try:
        return await asyncio.to_thread(
            search, stop=lambda: is_left.is_set() or time.monotonic() >= ends_at
        )
    finally:
        is_left.set()


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
