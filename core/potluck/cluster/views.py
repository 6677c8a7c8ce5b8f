"""What clients see of the model: plans, loads and its state, as frozen values of the local API."""

from collections.abc import Mapping, Sequence

import msgspec

from potluck.api.values import schema
from potluck.api.values.schema import (
    LoadProgress,
    PlanView,
    StageView,
    Transfer,
)
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.loader import DEPLOYING, LoadState
from potluck.cluster.master.master import Master
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.stage_deployment import StageDeployment
from potluck.plan.explanation import seconds
from potluck.plan.replicas import explain_replicas
from potluck.plan.stages import Plan

# Begin and end of each phase on the progress bar of a load, which only moves forward.
_PHASE_SHARE: Mapping[str, tuple[float, float]] = {
    "hashing": (0.0, 0.1),
    "waiting": (0.1, 0.1),
    "planning": (0.1, 0.15),
    "quantising": (0.15, 1.0),
    "streaming": (0.15, 1.0),
    "loading": (0.15, 1.0),
    "ready": (1.0, 1.0),
}
_WITHOUT_PLAN = ("hashing", "waiting", "planning")


def plan_view(
    planned: Planned,
    *,
    epoch: int,
    replicas: Sequence[Planned] | None = None,
    is_viewed: bool = True,
) -> PlanView:
    """Convert a plan. Epoch 0 means that it is not in force.

    `replicas`: the other ones now; None: as planned. `is_viewed`: whether the one that is to read pictures does.
    """
    plan = planned.plan
    others = [p.plan for p in replicas] if replicas is not None else planned.replicas
    together = planned.together_tokens_per_s if replicas is None else None
    held = explain_replicas((plan, *others), together) if others else ""
    reads = "" if planned.reading is None else planned.reading.explanation
    viewing = planned.viewing if is_viewed else None
    views = "" if viewing is None else viewing.explanation
    return PlanView(
        model_id=planned.model.manifest.model_id,
        model=planned.model.name,
        scheme=planned.scheme,
        context=planned.context,
        epoch=epoch,
        stages=_stages(planned),
        replicas=tuple(_stages(planned.of_replica(other)) for other in others),
        readers=() if planned.of_readers is None else _stages(planned.of_readers),
        predicted_tokens_per_s=plan.predicted_tokens_per_s,
        first_token_ms=planned.first_token_ms,
        alone={planned.names[node]: rate for node, rate in plan.alone.items()},
        explanation="\n".join(
            filter(
                None,
                (
                    held,
                    plan.explanation,
                    *(other.explanation for other in others),
                    reads,
                    _answers(planned),
                    views,
                    planned.note,
                    *planned.warnings,
                ),
            )
        ),
        warnings=planned.warnings,
        users=sum(one.users for one in (plan, *others)),
        users_tokens_per_s=sum(one.users_tokens_per_s for one in (plan, *others)),
    )


def _answers(planned: Planned) -> str:
    """When the answer begins to the prompt that was asked about, unless it is said with who reads it."""
    prompt, reading = planned.prompt, planned.reading
    if prompt is None or (reading is not None and reading.takes(prompt)):
        return ""
    return f"First token of a prompt of {prompt:,} tokens after {seconds(planned.first_token_ms)}."


def _groups(plan: Plan, names: Sequence[str]) -> list[str]:
    """For each stage, who computes its layers together."""
    return [name for stage, name in zip(plan.pipeline, names, strict=True) for _ in stage.shares]


def _stages(planned: Planned) -> tuple[StageView, ...]:
    groups = _groups(planned.plan, planned.pipeline_names)
    return tuple(
        StageView(
            node=planned.names[stage.node],
            node_id=stage.node,
            device=stage.device,
            layers=(stage.layers.start, stage.layers.stop),
            embedding=stage.embedding,
            head=stage.head,
            predicted_ms=stage.predicted_ms,
            memory=stage.memory,
            share=stage.part,
            group=group if stage.is_ranked else "",
        )
        for stage, group in zip(planned.plan.stages, groups, strict=True)
    )


def deployment_plan(
    deployment: Deployment,
    replicas: Sequence[Planned] | None = None,
    *,
    is_viewed: bool = True,
) -> PlanView:
    """The plan that is in force or being put into force; the others as of `plan_view`."""
    view = plan_view(
        deployment.planned, epoch=deployment.epoch, replicas=replicas, is_viewed=is_viewed
    )
    return msgspec.structs.replace(
        view, explanation="\n".join(filter(None, (view.explanation, *deployment.notes)))
    )


def transfers(deployment: Deployment | None) -> tuple[Transfer, ...]:
    """The transfer of each computer of the deployment."""
    tasks = deployment.tasks if deployment is not None else ()
    nodes = dict.fromkeys(task.stage.node for task in tasks)
    return tuple(moved_by([task for task in tasks if task.stage.node == node]) for node in nodes)


def moved_by(tasks: Sequence[StageDeployment]) -> Transfer:
    """The transfer of one computer, whose stages are sent one after the other."""
    sent, total = sum(t.progress.sent for t in tasks), sum(t.progress.total for t in tasks)
    now = next((t for t in tasks if t.progress.sent < t.progress.total), tasks[-1])
    rate = now.progress.bytes_per_s
    return Transfer(
        node_id=tasks[0].stage.node,
        name=tasks[0].stage.name,
        sent=sent,
        total=total,
        bytes_per_s=rate,
        eta_s=(total - sent) / rate if rate else None,
    )


def load_fraction(state: LoadState, deployment: Deployment | None) -> float:
    """Progress of a load over all its phases, from 0 to 1."""
    start, end = _PHASE_SHARE.get(state.phase or "", (0.0, 0.0))
    inside = 0.0
    if state.phase == "hashing":
        inside = state.hashed
    elif state.phase in DEPLOYING and deployment is not None:
        inside = deployment.fraction
    return start + (end - start) * inside


def load_progress(master: Master) -> LoadProgress:
    """The progress of the load under way, as one event."""
    state, deployment = master.state, master.deployment
    return LoadProgress(
        state=state.phase or "waiting",
        fraction=load_fraction(state, deployment),
        message=state.message,
        nodes=transfers(deployment),
        plan=deployment_plan(deployment) if deployment is not None else None,
    )


def loaded(deployment: Deployment, *, was_there: bool) -> LoadProgress:
    """The last event of a load. `was_there`: it was loaded already, so nothing was sent."""
    return LoadProgress(
        state="ready",
        fraction=1.0,
        message="Ready",
        nodes=() if was_there else transfers(deployment),
        plan=deployment_plan(deployment),
    )


def model_state(master: Master, tokens_per_s: float | None) -> schema.ModelState:
    """The model that is loaded or being loaded."""
    state, turns = master.state, master.turns
    # The plan before says nothing of a model that is being opened or planned.
    deployment = None if state.phase in _WITHOUT_PLAN else master.deployment
    waiting = turns.waiting if turns is not None else 0
    planned = deployment.planned if deployment is not None else None
    phases: Mapping[str | None, schema.ModelPhase] = {
        None: "none",
        "hashing": "preparing",
        "waiting": "preparing",
        "planning": "preparing",
        "quantising": "preparing",
        "streaming": "streaming",
        "loading": "loading",
        "ready": "ready",
        "failed": "failed",
    }
    phase = phases[state.phase]
    message: str | None = state.message or None
    if phase == "ready" and not master.is_ready:
        phase, message = "failed", "A computer of this plan was lost. The next message plans anew."
    return schema.ModelState(
        name=planned.model.name if planned is not None else state.name,
        model_id=planned.model.manifest.model_id if planned is not None else None,
        state=phase,
        message=message,
        progress=load_fraction(state, deployment) if phase != "none" else None,
        tokens_per_s=tokens_per_s,
        plan=None
        if deployment is None
        else deployment_plan(
            deployment, master.replicas.planned, is_viewed=master.viewers.is_ready
        ),
        context=planned.context if planned is not None else 0,
        answering=turns.running if turns is not None else 0,
        waiting=waiting,
        wait_s=turns.wait_s(waiting) if turns is not None and waiting else None,
    )
