"""Who reads pictures, where another computer than that of the first stage does it much sooner.

The first stage can read pictures as well, so that nothing depends on the other one. Only computers without a part of the
plan are considered: of those with one, the planner puts one first that reads pictures fast (`preferences.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from potluck.errors import NotEnoughMemoryError
from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, Links, ModelShape, hop_between
from potluck.plan.explanation import seconds
from potluck.plan.labels import labels
from potluck.plan.stages import Plan, StagePlan

GAIN = 1.5  # times as soon: what a picture takes is measured by a part of a tower
LEAST_GAIN_MS = 300.0  # of a large picture; nobody notices less


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewing:
    """Who reads pictures for the first stage of a plan.

    Attributes:
        plan: of the one stage that does it.
        ms: of a large picture, until its rows are at the first stage.
        first_ms: of the same one, read by the first stage itself.
        explanation: a sentence for people.
    """

    plan: Plan
    ms: float
    first_ms: float
    explanation: str


def find_viewing(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    links: Links,
    plan: Plan,
    *,
    measured_tokens: int,
    busy: Collection[NodeId] = (),
    wanted: DeviceCost | None = None,
) -> Viewing | None:
    """Find the device without a part of this plan that reads pictures soonest, if it pays.

    None: the first stage reads them.

    Args:
        shape: of the model.
        devices: all; the first one is the master's, whose driver has the pictures.
        links: between computers.
        plan: of those that answer.
        measured_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
        busy: computers that do something else.
        wanted: the one that is to do it, whether it pays or not. It has no part of the plan.

    Raises:
        NotEnoughMemoryError: the wanted one has no room for the tower.
    """
    if not shape.picture_tokens:
        return None
    master, first = devices[0].node, plan.stages[0].node
    used = {stage.node for stage in plan.stages} | set(busy)

    def reading_ms(device: DeviceCost) -> float:
        return shape.picture_ms(device, measured_tokens)

    def ms(device: DeviceCost) -> float:
        there = hop_between(links, master, device.node).ms(shape.pixel_bytes)
        back = hop_between(links, device.node, master).ms(shape.row_bytes)
        on = hop_between(links, master, first).ms(shape.row_bytes)
        return there + reading_ms(device) + back + on

    reading = [
        device
        for device in devices
        for stage in plan.stages
        if stage.embedding and (stage.node, stage.device) == (device.node, device.device)
    ]
    others = [d for d in devices if d.node not in used and d.memory >= shape.viewer_memory]
    if wanted is not None:
        _check_memory(shape, wanted)
        others = [wanted]
    if not reading or not others:
        return None
    first_ms = hop_between(links, master, first).ms(shape.pixel_bytes)
    first_ms += max(map(reading_ms, reading))  # of a group, each rank reads them
    best = min(others, key=ms)
    if wanted is None and ms(best) > min(first_ms / GAIN, first_ms - LEAST_GAIN_MS):
        return None
    name = labels(devices)[devices.index(best)]
    return Viewing(
        plan=_plan_of(shape, best, ms(best)),
        ms=ms(best),
        first_ms=first_ms,
        explanation=f"Pictures are read by {name}: a large one in {seconds(ms(best))} instead of {seconds(first_ms)}.",
    )


def _check_memory(shape: ModelShape, device: DeviceCost) -> None:
    if device.memory < shape.viewer_memory:
        raise NotEnoughMemoryError(shape.viewer_memory, device.memory, device.name)


def _plan_of(shape: ModelShape, device: DeviceCost, ms: float) -> Plan:
    """The plan of a tower without layers."""
    stage = StagePlan(
        node=device.node,
        name=device.name,
        device=device.device,
        layers=range(0),
        embedding=False,
        head=False,
        predicted_ms=0.0,
        head_ms=0.0,
        prefill_ms=ms,
        memory=shape.viewer_memory,
        tower=True,
    )
    return Plan(
        stages=(stage,),
        hops=(),
        token_ms=0.0,
        predicted_tokens_per_s=0.0,
        users=1,
        users_tokens_per_s=0.0,
        alone={},
        lower_bound_ms=0.0,
        optimal=True,
        explanation="",
    )
