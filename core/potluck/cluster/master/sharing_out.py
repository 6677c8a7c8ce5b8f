"""Share the computers out as a request says it: one pipeline, readers beside it, or several replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.constraints import has_constraints
from potluck.errors import UsageError
from potluck.plan.apart import Answering, Reading, Sizes, plan_apart
from potluck.plan.cost import DeviceCost
from potluck.plan.replicas import plan_replicas, too_few
from potluck.plan.search import Stop, never
from potluck.plan.stages import Plan
from potluck.plan.viewing import Viewing, find_viewing


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
        plan, reading = plan_apart(
            sizes,
            devices,
            wanted=request.prefill,
            may_choose=may_choose and may_have_readers(request),
            answering=answering,
            stop=stop,
        )
        may_view = may_have_viewer(request)
        viewing = viewing_beside(sizes, devices, plan, reading) if may_view else None
        return SharedOut(plan=plan, reading=reading, viewing=viewing)
    found = plan_replicas(devices, request.replicas, answering=answering, stop=stop)
    plan, *others = found.plans
    is_less = len(found.plans) < request.replicas
    return SharedOut(
        plan=plan,
        replicas=tuple(others),
        together_tokens_per_s=found.together.predicted_tokens_per_s if others else None,
        warnings=(too_few(request.replicas, found),) if is_less else (),
    )


def viewing_beside(
    sizes: Sizes, devices: Sequence[DeviceCost], plan: Plan, reading: Reading | None
) -> Viewing | None:
    """Who reads pictures for the first stage of a plan, beside who reads prompts for it; None: nobody who pays."""
    return find_viewing(
        sizes.shape,
        devices,
        sizes.links,
        plan,
        measured_tokens=sizes.measured_tokens,
        busy=[stage.node for stage in reading.plan.stages] if reading else (),
    )


def may_have_readers(request: PlanRequest) -> bool:
    """Whether another computer may read prompts, where that makes answers sooner, although the request does not name it."""
    return not has_constraints(request) and request.users == request.replicas == 1


def may_have_viewer(request: PlanRequest) -> bool:
    """Whether another computer reads pictures, where that pays: not where the request says who takes part."""
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
        "--workers": request.workers,
    }
    if given := [name for name, value in others.items() if value]:
        raise UsageError(
            f"{given[0]} says which computers hold the model once, and with --replicas the planner shares"
            f" them out among {request.replicas} of it. Leave one of the two out."
        )
