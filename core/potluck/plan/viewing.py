"""Who reads pictures, where another computer than that of the first stage does it much sooner.

The first stage can read pictures as well, so that nothing depends on the other one. Considered are computers without a part
of the plan, and later stages with room for the tower beside their layers. Of the computers with layers, the planner puts one
first that reads pictures fast (`preferences.py`), where it may.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from potluck.errors import NotEnoughMemoryError
from potluck.ids import NodeId
from potluck.plan.cost import DeviceCost, Links, ModelShape, hop_between
from potluck.plan.explanation import seconds
from potluck.plan.labels import labels
from potluck.plan.stages import Plan, StagePlan

Among = Literal["all", "stages", "others"]
GAIN = 1.5  # times as soon: what a picture takes is measured by a part of a tower
LEAST_GAIN_MS = 300.0  # of a large picture; nobody notices less


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewing:
    """Who reads pictures for the first stage of a plan.

    Attributes:
        plan: of the one stage that does it.
        place: of the stage with layers that has the tower too, among those of the other plan; None: it is on a computer without any.
        ms: of a large picture, until its rows are at the first stage.
        first_ms: of the same one, read by the first stage itself.
        explanation: a sentence for people.
    """

    plan: Plan
    place: int | None = None
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
    among: Among = "all",
    wanted: DeviceCost | None = None,
) -> Viewing | None:
    """Find the device that reads pictures soonest, if it pays.

    None: the first stage reads them.

    Args:
        shape: of the model.
        devices: all; the first one is the master's, whose driver has the pictures.
        links: between computers.
        plan: of those that answer.
        measured_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
        busy: computers that do something else.
        among: whom it may be: "all", the "stages" of the plan, or "others" alone.
        wanted: the one that is to do it, whether it pays or not.

    Raises:
        NotEnoughMemoryError: the wanted one has no room for the tower.
    """
    if not shape.picture_tokens:
        return None
    master, first = devices[0].node, plan.stages[0].node

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
    found = _candidates(devices, plan, busy, among)
    if wanted is not None:
        found = [each for each in found if each.device.node == wanted.node]
    enough = [each for each in found if each.memory >= shape.viewer_memory]
    if wanted is not None and found and not enough:
        most = max(each.memory for each in found)
        raise NotEnoughMemoryError(shape.viewer_memory, most, wanted.name)
    if not reading or not enough:
        return None
    first_ms = hop_between(links, master, first).ms(shape.pixel_bytes)
    first_ms += max(map(reading_ms, reading))  # of a group, each rank reads them
    chosen = min(enough, key=lambda each: ms(each.device))
    best = chosen.device
    if wanted is None and ms(best) > min(first_ms / GAIN, first_ms - LEAST_GAIN_MS):
        return None
    name = labels(devices)[devices.index(best)]
    return Viewing(
        plan=_plan_of(best, ms(best), 0 if chosen.place is not None else shape.viewer_memory),
        place=chosen.place,
        ms=ms(best),
        first_ms=first_ms,
        explanation=f"Pictures are read by {name}: a large one in {seconds(ms(best))} instead of {seconds(first_ms)}.",
    )


def with_tower(shape: ModelShape, plan: Plan, viewing: Viewing | None) -> Plan:
    """The plan, in which a stage that reads pictures has the tower."""
    if viewing is None or viewing.place is None:
        return plan
    stages = list(plan.stages)
    stage = stages[viewing.place]
    memory = stage.memory + shape.viewer_memory
    stages[viewing.place] = replace(stage, tower=True, memory=memory)
    return replace(plan, stages=tuple(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    device: DeviceCost
    place: int | None  # of its stage
    memory: int  # bytes that are left there


def _candidates(
    devices: Sequence[DeviceCost], plan: Plan, busy: Collection[NodeId], among: Among
) -> list[_Candidate]:
    """Devices that could read pictures for the first stage. Those of a group wait for each other, and are left out."""
    found: list[_Candidate] = []
    places = {(stage.node, stage.device): place for place, stage in enumerate(plan.stages)}
    used = {stage.node for stage in plan.stages} | set(busy)
    for device in devices:
        place = places.get((device.node, device.device))
        if place is None and device.node not in used and among != "stages":
            found.append(_Candidate(device=device, place=None, memory=device.memory))
        if place is not None and among != "others":
            stage = plan.stages[place]
            if not (stage.embedding or stage.is_ranked):
                left = device.memory - stage.memory
                found.append(_Candidate(device=device, place=place, memory=left))
    return found


def _plan_of(device: DeviceCost, ms: float, memory: int) -> Plan:
    """The plan of a tower without layers, which takes so many bytes more than what is there."""
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
        memory=memory,
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
