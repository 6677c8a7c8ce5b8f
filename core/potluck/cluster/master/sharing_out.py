"""Share the computers out as a request says it: one pipeline, readers beside it, or several replicas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.constraints import has_constraints
from potluck.errors import InvalidLayersError, NotEnoughMemoryError, UsageError
from potluck.plan.apart import Answering, Reading, Sizes, plan_apart
from potluck.plan.byhand import find_device
from potluck.plan.cost import DeviceCost
from potluck.plan.labels import labels
from potluck.plan.replicas import plan_replicas, too_few
from potluck.plan.search import Stop, never
from potluck.plan.stages import Plan
from potluck.plan.viewing import Among, Viewing, find_viewing, with_tower


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOut:
    """Who computes what.

    Attributes:
        plan: of those that answer.
        reading: who reads long prompts for them.
        viewing: who reads pictures for their first stage.
        replicas: the other times that the model is held.
        together_tokens_per_s: of one answer, if the model were held once by all computers; None: it is.
        warnings: what was asked for and is not given, in sentences.
    """

    plan: Plan
    reading: Reading | None = None
    viewing: Viewing | None = None
    replicas: tuple[Plan, ...] = ()
    together_tokens_per_s: float | None = None
    warnings: tuple[str, ...] = ()


def share_out(
    request: PlanRequest,
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    *,
    may_choose: bool,
    answering: Answering,
    stop: Stop = never,
) -> SharedOut:
    """Share these devices out; `may_choose`: one of them may read prompts for the others.

    Raises:
        PlanError, UsageError: there is no such plan.
    """
    if request.replicas == 1:
        plan_of = partial(
            plan_apart,
            sizes,
            wanted=request.prefill,
            may_choose=may_choose and may_have_readers(request),
            answering=answering,
            stop=stop,
        )
        if request.pictures is not None:
            return _viewed_by(
                request.pictures, sizes, devices, plan_of, is_fixed=bool(request.layers)
            )
        plan, reading = plan_of(devices)
        among = "all" if may_have_viewer(request) else "stages"
        viewing = viewing_of(sizes, devices, plan, reading, among=among)
        return SharedOut(
            plan=with_tower(sizes.shape, plan, viewing), reading=reading, viewing=viewing
        )
    found = plan_replicas(devices, request.replicas, answering=answering, stop=stop)
    plan, *others = found.plans
    is_less = len(found.plans) < request.replicas
    return SharedOut(
        plan=plan,
        replicas=tuple(others),
        together_tokens_per_s=found.together.predicted_tokens_per_s if others else None,
        warnings=(too_few(request.replicas, found),) if is_less else (),
    )


def _viewed_by(
    name: str,
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    plan_of: Callable[[Sequence[DeviceCost]], tuple[Plan, Reading | None]],
    *,
    is_fixed: bool,
) -> SharedOut:
    """The plan where this computer reads pictures: as the first one, beside its layers, or without any.

    Args:
        name: of the computer, or of a device.
        sizes: of the model, and the links.
        devices: all that may be used.
        plan_of: makes the plan of devices.
        is_fixed: whether all have the same layers whatever the devices.

    Raises:
        InvalidLayersError: there is no such computer, or it does something else.
        PlanError, UsageError: there is no such plan, or the computer has no room for the tower.
    """
    wanted = devices[find_device(devices, labels(devices), name)]
    if not sizes.shape.picture_tokens:
        raise UsageError("This model reads no pictures. Leave --pictures out.")
    try:
        return _seen_by(wanted, sizes, devices, plan_of(devices))
    except NotEnoughMemoryError:
        if is_fixed:
            raise
    less = sizes.shape.viewer_memory  # which layers may have taken
    apart = [
        replace(d, memory=max(0, d.memory - less)) if d.node == wanted.node else d for d in devices
    ]
    return _seen_by(wanted, sizes, devices, plan_of(apart))


def _seen_by(
    wanted: DeviceCost,
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    planned: tuple[Plan, Reading | None],
) -> SharedOut:
    """A plan where this computer reads pictures."""
    plan, reading = planned
    own = [stage for stage in plan.stages if stage.node == wanted.node]
    if any(stage.embedding for stage in own):
        return SharedOut(plan=plan, reading=reading)
    if reading is not None and any(stage.node == wanted.node for stage in reading.plan.stages):
        raise InvalidLayersError(
            f"{wanted.name} reads prompts for the others. Leave it out of --prefill, or out of --pictures.",
            name=wanted.name,
        )
    viewing = viewing_of(sizes, devices, plan, reading, wanted=wanted)
    if viewing is None:
        raise InvalidLayersError(
            f"{wanted.name} computes layers together with others, and reads pictures only where these are the first"
            " ones. Leave it out of --layers, or out of --pictures.",
            name=wanted.name,
        )
    return SharedOut(plan=with_tower(sizes.shape, plan, viewing), reading=reading, viewing=viewing)


def viewing_of(
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    plan: Plan,
    reading: Reading | None,
    *,
    among: Among = "all",
    wanted: DeviceCost | None = None,
) -> Viewing | None:
    """Who reads pictures for the first stage of a plan, beside who reads prompts for it: see `find_viewing`."""
    return find_viewing(
        sizes.shape,
        devices,
        sizes.links,
        plan,
        measured_tokens=sizes.measured_tokens,
        busy=[stage.node for stage in reading.plan.stages] if reading else (),
        among=among,
        wanted=wanted,
    )


def may_have_readers(request: PlanRequest) -> bool:
    """Whether another computer may read prompts, where that makes answers sooner, although the request does not name it."""
    return not has_constraints(request) and request.users == request.replicas == 1


def may_have_viewer(request: PlanRequest) -> bool:
    """Whether a computer without layers reads pictures, where that pays: not where the request says who takes part."""
    return not has_constraints(request) and request.replicas == 1


def check_replicas(request: PlanRequest) -> None:
    """Refuse replicas together with what says which computers hold the model once.

    Raises:
        UsageError: names what to leave out.
    """
    if request.replicas == 1:
        return
    others = {
        "--layers": request.layers,
        "--prefill": request.prefill,
        "--pictures": request.pictures,
        "--workers": request.workers,
    }
    if given := [name for name, value in others.items() if value]:
        raise UsageError(
            f"{given[0]} says which computers hold the model once, and with --replicas the planner shares"
            f" them out among {request.replicas} of it. Leave one of the two out."
        )
