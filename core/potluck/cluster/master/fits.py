"""Whether a model fits on the computers that are there now, and how fast it would be, without loading it.

Nothing is measured for this either: what is not known is said to be unknown. Memory is what the computers
lend now. Times are those of profiles that the master has, of this model's layers or of others.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from potluck.api.values.hub import Fit, OneMore, Speed
from potluck.cluster.computer import Computer, Computers
from potluck.cluster.master.asked import DEFAULT_CONTEXT, schemes_of
from potluck.cluster.master.device_costs import device_cost, unmeasured_devices
from potluck.cluster.master.measurements import MeasuredDevice, Measurements, shape_key
from potluck.cluster.master.searching import search_in_thread
from potluck.errors import PlanError, PotluckError, UsageError, format_bytes
from potluck.ids import NodeId
from potluck.model.config import ModelConfig
from potluck.model.footprint import usable_memory, working_bytes
from potluck.model.schemes import PACKED_SCHEMES, Scheme
from potluck.model.shapes.table import DEFAULT_SHAPE, SHAPES
from potluck.plan.cost import DeviceCost, Links, ModelShape, Sums
from potluck.plan.placement import make_plan
from potluck.plan.problems import lacking_memory
from potluck.plan.search import Stop
from potluck.plan.shape import read_bytes, shape_of
from potluck.plan.stages import Plan
from potluck.store.registry import random_model
from potluck.wire.messages import DeviceId

USUAL_SCHEME: Scheme = "int4-offset"  # of most models that are recommended
LOOK_S = 10.0  # for the process that knows the devices to start
SEARCH_S = 0.5  # for one model; there are a dozen in a list
LEAST_READ_BYTES = (
    8 << 20
)  # smaller layers fit into a processor's cache, and say nothing of large ones
# Of an estimate by other layers. On a busy CPU, layers of 9 to 146 MB in int4-offset were read at 1.6 to 2.6 GB/s.
SLOWEST, FASTEST = 0.7, 1.25
_WORTH = 1.1  # an absent computer is worth naming if it makes the model so much faster


@dataclass(frozen=True, slots=True)
class _Speed:
    """What is known of a device's times with one model."""

    cost: DeviceCost
    is_measured: bool  # on the layers of this model


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """All that a fit is computed from, so that a thread can do it."""

    config: ModelConfig
    context: int
    local: Computer
    workers: Sequence[Computer]
    known: Sequence[MeasuredDevice]
    links: Links
    sums: Sums
    absent: Mapping[NodeId, str]


class Fits:
    """Says how models fit.

    Args:
        computers: this computer and the workers.
        measurements: that the master has.
        absent: returns the names of the paired computers that are not connected.
    """

    def __init__(
        self,
        computers: Computers,
        measurements: Measurements,
        absent: Callable[[], Mapping[NodeId, str]] = dict,
    ) -> None:
        self._computers = computers
        self._measurements = measurements
        self._absent = absent

    async def of(self, config: Mapping[str, object]) -> Fit:
        """How a model fits, by its `config.json`.

        Raises:
            ModelError: the config is of no model that can be run.
        """
        model = random_model("", config)
        question = _Question(
            config=model.config,
            context=min(model.config.max_position, DEFAULT_CONTEXT),
            local=self._computers.local,
            workers=list(self._computers.available()),
            known=list(self._measurements.known()),
            links=self._measurements.links.known(),
            sums=self._measurements.sums.known(),
            absent=dict(self._absent()),
        )
        schemes = schemes_of("auto", model)
        return await search_in_thread(lambda stop: _fit(question, schemes, stop), limit_s=SEARCH_S)

    async def look(self) -> None:
        """Wait a moment for the devices of a node that has just started. Without them, fits say so."""
        with suppress(PotluckError, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._computers.local.look()

    async def measure(self) -> None:
        """Measure layers of a usual size on all devices and the links, so that speeds can be estimated.

        Raises:
            PotluckError: no device of this computer can compute.
        """
        local, workers = self._computers.local, list(self._computers.available())
        await local.look()
        raw = SHAPES[DEFAULT_SHAPE]
        config = ModelConfig.from_dict(raw)
        await self._measurements.device_costs([local, *workers], raw, config, USUAL_SCHEME)
        await self._measurements.links.measure(local, workers)

    def here(self) -> frozenset[NodeId]:
        """The computers that take part now."""
        everyone = (self._computers.local, *self._computers.available())
        return frozenset(computer.node_id for computer in everyone)


def _fit(question: _Question, schemes: Sequence[Scheme], stop: Stop) -> Fit:
    """The fit in the best scheme that fits, or else in the smallest."""
    computers = (question.local, *question.workers)
    scheme, lacking, shape = schemes[0], 0, None
    for scheme in schemes:
        shape = shape_of(question.config, scheme, context=question.context)
        devices = unmeasured_devices(computers, question.config, scheme, working=_working(question))
        if devices is None:
            return Fit(text="How much memory your computers lend is not known yet.")
        if not (lacking := lacking_memory(shape, devices, stop=stop)):
            return _fitting(question, scheme, shape, devices, stop)
    assert shape is not None
    more = _one_more(question, scheme, shape, None, stop)
    return Fit(
        fits=False,
        text=_advice(computers, lacking) + (f" It fits with {more.name}." if more else ""),
        scheme=scheme,
        needed=shape.model_memory,
        missing=lacking,
        one_more=more,
    )


def _fitting(
    question: _Question,
    scheme: Scheme,
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    stop: Stop,
) -> Fit:
    local = question.local.node_id
    own = [device for device in devices if device.node == local]
    alone = bool(own) and not lacking_memory(shape, own, stop=stop)
    speeds = _speeds(question, scheme, shape, (question.local, *question.workers))
    plan = _plan(shape, speeds, question, stop)
    names = list(dict.fromkeys(stage.name for stage in plan.stages)) if plan else []
    is_measured = all(speed.is_measured for speed in speeds)
    fit = Fit(
        fits=True,
        scheme=scheme,
        needed=shape.model_memory,
        computers=tuple(names),
        speed=_range(plan.predicted_tokens_per_s, is_measured) if plan else None,
        alone=alone,
        alone_speed=_range(rate, is_measured)
        if plan and (rate := plan.alone.get(local)) is not None
        else None,
        one_more=_one_more(question, scheme, shape, plan, stop),
    )
    return _worded(fit, question)


def _working(question: _Question) -> int:
    return working_bytes(question.config, question.context)


def _speeds(
    question: _Question, scheme: Scheme, shape: ModelShape, computers: Iterable[Computer]
) -> list[_Speed]:
    """The devices of which something is known that tells their times with this model."""
    known = _known(question, scheme)
    found: list[_Speed] = []
    for computer in computers:
        for device in {device.id: device for device in computer.devices}.values():
            if (measured := known.get((computer.node_id, device.id))) is None:
                continue
            is_own = measured.measured_as[0] == shape_key(question.config)
            profile = measured.profile
            cost = device_cost(computer, profile, scheme, _working(question))
            found.append(_Speed(cost if is_own else _scaled(cost, measured, shape), is_own))
    return found


def _known(question: _Question, scheme: Scheme) -> dict[tuple[NodeId, DeviceId], MeasuredDevice]:
    """For each device the profile that says most: of this model, of this scheme, of large layers."""
    own = shape_key(question.config)
    best: dict[tuple[NodeId, DeviceId], tuple[tuple[bool, bool, int], MeasuredDevice]] = {}
    for known in question.known:
        shape, of_scheme, cache = known.measured_as
        is_own = shape == own and of_scheme == scheme and cache == "full"
        is_alike = (of_scheme in PACKED_SCHEMES) == (scheme in PACKED_SCHEMES)
        if not is_own and (not is_alike or known.read_bytes < LEAST_READ_BYTES):
            continue
        rank, device = (is_own, of_scheme == scheme, known.read_bytes), known.profile.device.id
        key = (known.node_id, device)
        if key not in best or best[key][0] < rank:
            best[key] = rank, known
    return {key: known for key, (_, known) in best.items()}


def _scaled(cost: DeviceCost, measured: MeasuredDevice, shape: ModelShape) -> DeviceCost:
    """The times of a device with other layers: reading the weights is what takes the time."""
    ms_per_byte = sum(measured.profile.decode_ms) / measured.read_bytes
    decode_ms = tuple(nbytes * ms_per_byte for nbytes in read_bytes(shape))
    head_ms = shape.head_bytes * ms_per_byte
    return replace(cost, decode_ms=decode_ms, prefill_ms=decode_ms, head_ms=head_ms)


def _plan(
    shape: ModelShape, speeds: Sequence[_Speed], question: _Question, stop: Stop
) -> Plan | None:
    """The best plan on these devices; None: the model does not fit on them."""
    if not speeds:
        return None
    try:
        costs = [speed.cost for speed in speeds]
        return make_plan(shape, costs, question.links, sums=question.sums, stop=stop)
    except (PlanError, UsageError):
        return None


def _range(tokens_per_s: float, is_measured: bool) -> Speed:
    if is_measured:
        return Speed(low=tokens_per_s, high=tokens_per_s)
    return Speed(low=SLOWEST * tokens_per_s, high=FASTEST * tokens_per_s)


def _one_more(
    question: _Question, scheme: Scheme, shape: ModelShape, without: Plan | None, stop: Stop
) -> OneMore | None:
    """The absent computer that would help most, by its profile and the memory that it lent then."""
    here = _speeds(question, scheme, shape, (question.local, *question.workers))
    if not any(speed.cost.node == question.local.node_id for speed in here):
        return None  # the driver's own device comes first in a plan
    known = _known(question, scheme)
    best: tuple[Plan, OneMore] | None = None
    for node_id, name in question.absent.items():
        theirs = [known for (node, _), known in known.items() if node == node_id]
        speeds = [*here, *(_absent_speed(question, scheme, shape, name, k) for k in theirs)]
        plan = _plan(shape, speeds, question, stop) if theirs else None
        if plan is None or not any(stage.node == node_id for stage in plan.stages):
            continue
        rate = plan.predicted_tokens_per_s
        if best is not None and rate <= best[0].predicted_tokens_per_s:
            continue
        if without is None or rate > _WORTH * without.predicted_tokens_per_s:
            is_measured = all(speed.is_measured for speed in speeds)
            best = plan, OneMore(name=name, speed=_range(rate, is_measured))
    return best[1] if best is not None else None


def _absent_speed(
    question: _Question, scheme: Scheme, shape: ModelShape, name: str, known: MeasuredDevice
) -> _Speed:
    device = known.profile.device
    usable = usable_memory(device.memory_free, device.kind, scheme)
    cost = DeviceCost(
        node=known.node_id,
        name=name,
        device=f"{device.kind}:{device.index}",
        memory=max(0, usable - _working(question)),
        decode_ms=known.profile.decode_ms,
        prefill_ms=known.profile.prefill_ms,
        head_ms=known.profile.head_ms,
    )
    is_own = known.measured_as[0] == shape_key(question.config)
    return _Speed(cost if is_own else _scaled(cost, known, shape), is_own)


def _worded(fit: Fit, question: _Question) -> Fit:
    only_here = fit.alone and fit.computers in ((), (question.local.name,))
    if only_here:
        where = "on this computer"
    elif fit.computers:
        where = f"on {_listed(fit.computers)}"
    else:
        where = f"on your {1 + len(question.workers)} computers together"
    text = f"Fits {where}." if fit.speed is None else f"{_shown(fit.speed)} tokens/s {where}."
    if not only_here and fit.alone_speed is not None:
        text += f" {_shown(fit.alone_speed)} on this computer alone."
    elif not only_here and not fit.alone:
        text += " It does not fit on this computer alone."
    if fit.one_more is not None and fit.one_more.speed is not None:
        text += f" {_shown(fit.one_more.speed)} with {fit.one_more.name}."
    return msgspec.structs.replace(fit, text=text)


def _shown(speed: Speed) -> str:
    """A speed for people: About 11, or About 8 to 12."""
    low, high = (f"{rate:.0f}" if rate >= 2 else f"{rate:.1f}" for rate in (speed.low, speed.high))
    return f"About {low}" if low == high else f"About {low} to {high}"


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _advice(computers: Sequence[Computer], lacking: int) -> str:
    """What to do about the missing memory: free it where other programs have so much, or add a computer."""
    taken = {
        computer.name: sum(d.memory_total - d.memory_free for d in computer.devices)
        for computer in computers
    }
    name, most = max(taken.items(), key=lambda entry: entry[1])
    free = f"close other programs on {name}, or " if most > lacking else ""
    return f"Would fit with {format_bytes(lacking)} more memory: {free}add a computer."
