"""Who reads long prompts for those who answer: a computer with a complete copy of the model, or several.

Reading is computing, and answering is reading memory: a GPU that lends little memory may be the best at the one, and
not at the other. What was read has to move: so it pays only if the link carries a token's cache sooner than the
others compute the token (`core/DESIGN.md`).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from potluck.errors import InvalidLayersError, PlanError, UsageError
from potluck.ids import NodeId
from potluck.plan.byhand import find_device
from potluck.plan.cost import DeviceCost, Links, ModelShape, hop_between
from potluck.plan.depth import token_after_ms
from potluck.plan.explanation import seconds
from potluck.plan.labels import labels
from potluck.plan.placement import make_plan
from potluck.plan.prefill import best_chunk, time_to_first_token_ms
from potluck.plan.search import Stop, never
from potluck.plan.stages import Plan

LEAST_TOKENS = 512  # of a prompt that others read, where that was asked for
USUAL_PROMPT, USUAL_ANSWER = 2000, 256  # tokens, by which plans are compared
GAIN = 1.15  # so many times as fast a usual answer has to be for a copy of the model to be made
LEAST_GAIN_MS = 1000.0  # less is not noticed
SLOWER = 1.05  # so many times as long a token may take because a computer reads and does not answer
_LENGTHS = (256, 512, 1024, 2048, 4096)  # of prompts, of which the first that gains is worth moving


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the times depend on beside the plan."""

    shape: ModelShape
    links: Links
    cache_bytes: Callable[[int], int]  # of a session of so many tokens
    measured_tokens: int  # of the chunk that `DeviceCost.prefill_ms` was measured with
    context: int
    most_bytes: int  # of a cache that may be moved
    prompt: int | None = None  # tokens of the prompt that people are told of; None: a usual one
    is_int8: bool = False  # whether processors keep caches in 8 bits; GPUs do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The computers that read prompts, and which prompts.

    Attributes:
        plan: a complete copy of the model, which no computer of the answering stages has a part of.
        least_tokens: new tokens of a prompt that is read there; shorter ones are read where they are answered.
        most_tokens: of such a prompt: the cache of a longer one is not moved.
        explanation: lines of text for people.
    """

    plan: Plan
    least_tokens: int
    most_tokens: int
    explanation: str

    def takes(self, tokens: int) -> bool:
        """Whether a prompt with so many tokens, all of them new, is read there."""
        return self.least_tokens <= tokens <= self.most_tokens


class Answering(Protocol):
    """Makes the plan of those that answer."""

    def __call__(self, devices: Sequence[DeviceCost], *, stop: Stop) -> Plan: ...


def plan_apart(
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    *,
    wanted: Sequence[str],
    may_choose: bool,
    answering: Answering,
    stop: Stop = never,
) -> tuple[Plan, Reading | None]:
    """The plan of those that answer, and who reads prompts for them.

    Args:
        sizes: of the model, and the links.
        devices: all that may be used; the first one is the master's.
        wanted: names of the computers that are to read prompts; none: no certain ones.
        may_choose: whether a computer is chosen, if one pays.
        answering: makes the plan of these devices; those that are not to be used are apart.
        stop: once it returns True, what was found so far is returned.

    Raises:
        InvalidLayersError: a wanted name is unknown, or no computer is left to answer.
        PlanError, UsageError: there is no such plan.
    """
    if wanted:
        return _read_by(sizes, devices, wanted, answering, stop)
    plan = answering(devices, stop=stop)
    best = _best_reading(sizes, devices, plan, answering, stop) if may_choose else None
    return best or (plan, None)


def reading_beside(
    sizes: Sizes, devices: Sequence[DeviceCost], plan: Plan, *, stop: Stop = never
) -> Reading | None:
    """The one computer without a part of the plan that reads prompts so that a usual answer is soonest; None: none pays."""
    found = _best_reading(sizes, devices, plan, None, stop)
    return None if found is None else found[1]


def _read_by(
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    wanted: Sequence[str],
    answering: Answering,
    stop: Stop,
) -> tuple[Plan, Reading]:
    names = labels(devices)
    reading = [devices[find_device(devices, names, name)] for name in wanted]
    if old := [device.name for device in reading if not device.moves_caches]:
        raise InvalidLayersError(
            f"{old[0]} cannot take part where some computers read prompts for others: its Potluck is"
            " too old. Update it there."
        )
    readers = {device.node for device in reading}
    others = {device.node for device in devices} - readers
    if not others:
        raise InvalidLayersError(
            "All computers that are here are to read prompts, and none is left to answer. Name fewer."
        )
    plan = answering(_without(devices, readers | _too_old(devices)), stop=stop)
    reader = _plan_of(sizes, _without(devices, others))
    if not _is_alike(sizes, plan, reader):
        raise InvalidLayersError(
            f"{_names(reader)} cannot read for {_names(plan)}: with --cache int8, processors and GPUs"
            " keep what was read in different forms. Leave --cache out."
        )
    if min(_most_tokens(sizes), sizes.context - 1) < LEAST_TOKENS:
        raise InvalidLayersError(
            f"{_names(reader)} would have nothing to read: prompts with fewer than {LEAST_TOKENS} tokens are read"
            " where they are answered, and longer ones are beyond the context, or their cache is too large to be"
            " moved. Give a larger --context, or leave --prefill out."
        )
    return plan, _reading(sizes, plan, reader, least=LEAST_TOKENS)


def _best_reading(
    sizes: Sizes,
    devices: Sequence[DeviceCost],
    plan: Plan,
    answering: Answering | None,
    stop: Stop,
) -> tuple[Plan, Reading] | None:
    """The plan with the one computer that reads, with which a usual answer is soonest; None: none pays.

    Without `answering`, the plan stays as it is.
    """
    best: tuple[Plan, Reading] | None = None
    usual = answer_ms(sizes, plan, None)
    most_ms = min(usual / GAIN, usual - LEAST_GAIN_MS)
    used = {stage.node for stage in plan.stages}
    nodes, old = {device.node for device in devices}, _too_old(devices)
    is_fixed = answering is None
    takes_no_caches = bool(used & old)
    for node in sorted((nodes - used if len(used) == 1 or is_fixed else nodes) - old):
        if stop() or (is_fixed and takes_no_caches):
            break
        try:
            reader = _plan_of(sizes, _without(devices, nodes - {node}))
            if answer_ms(sizes, plan, reader) > most_ms:
                continue  # it gains nothing even if it is not missed
            is_kept = node not in used and not takes_no_caches
            rest = (
                plan
                if is_kept or answering is None
                else answering(_without(devices, {node} | old), stop=stop)
            )
        except (PlanError, UsageError):
            continue
        ms = answer_ms(sizes, rest, reader)
        is_slower = rest.token_ms > SLOWER * plan.token_ms
        if ms < most_ms and not is_slower and _is_alike(sizes, rest, reader):
            most_ms, best = ms, (rest, _reading(sizes, rest, reader, least=None))
    return best


def answer_ms(sizes: Sizes, plan: Plan, reading: Plan | None) -> float:
    """The time of a usual answer to a usual prompt."""
    prompt = min(USUAL_PROMPT, sizes.context // 2)
    if prompt > _most_tokens(sizes):
        reading = None
    token_ms = token_after_ms(sizes.shape, plan, prompt)
    return first_token_ms(sizes, plan, reading, prompt) + USUAL_ANSWER * token_ms


def first_token_ms(sizes: Sizes, plan: Plan, reading: Plan | None, tokens: int) -> float:
    """The time to the first token of an answer; `reading` reads the prompt, or (None) who answers does.

    Caches move while later chunks are computed. What moves takes as long as the slowest computer sends or receives it.
    """
    if reading is None:
        return _prefill_ms(sizes, plan, tokens)
    chunk = _chunk(sizes, reading, tokens)
    computing = _prefill_ms(sizes, reading, tokens)
    moving, last = (_moving_ms(sizes, plan, reading, n) for n in (tokens, min(tokens, chunk)))
    first = computing * min(1.0, chunk / max(1, tokens))  # nothing moves before it
    return max(computing + last, first + moving) + token_after_ms(sizes.shape, plan, tokens)


def told_ms(sizes: Sizes, plan: Plan, reading: Reading | None) -> float:
    """The time to the first token of an answer to the prompt that people are told of."""
    prompt = sizes.prompt or min(USUAL_PROMPT, sizes.context // 2)
    reader = reading.plan if reading is not None and reading.takes(prompt) else None
    return first_token_ms(sizes, plan, reader, prompt)


def _prefill_ms(sizes: Sizes, plan: Plan, tokens: int) -> float:
    return time_to_first_token_ms(
        sizes.shape,
        plan,
        prompt_tokens=tokens,
        chunk_tokens=_chunk(sizes, plan, tokens),
        measured_tokens=sizes.measured_tokens,
    )


def _chunk(sizes: Sizes, plan: Plan, tokens: int) -> int:
    measured = sizes.measured_tokens
    return best_chunk(sizes.shape, plan, prompt_tokens=tokens, measured_tokens=measured)


def _moving_ms(sizes: Sizes, plan: Plan, reading: Plan, tokens: int) -> float:
    """The time in which the caches of so many tokens go from the stages of one plan to those of another."""
    layer_bytes = sizes.cache_bytes(tokens) / sizes.shape.num_layers
    busy: defaultdict[tuple[str, NodeId], float] = defaultdict(float)
    latency_ms = 0.0
    for source in reading.stages:
        for target in plan.stages:
            both = range(
                max(source.layers.start, target.layers.start),
                min(source.layers.stop, target.layers.stop),
            )
            hop = hop_between(sizes.links, source.node, target.node)
            latency_ms = max(latency_ms, hop.latency_ms)
            # A rank has about its share of each row.
            nbytes = len(both) * layer_bytes * source.part * target.part
            ms = nbytes * hop.ms_per_byte
            busy["sends", source.node] += ms
            busy["receives", target.node] += ms
    return latency_ms + max(busy.values(), default=0.0)


def _is_alike(sizes: Sizes, plan: Plan, reading: Plan) -> bool:
    """Whether all of them keep caches in one form."""
    stages = (*plan.stages, *reading.stages)
    return not sizes.is_int8 or len({stage.device.startswith("cpu") for stage in stages}) == 1


def _too_old(devices: Sequence[DeviceCost]) -> set[NodeId]:
    """The computers that neither send the caches of prompts nor take them."""
    return {device.node for device in devices if not device.moves_caches}


def _without(devices: Sequence[DeviceCost], nodes: set[NodeId]) -> list[DeviceCost]:
    """The devices, of which those of these computers have no layers."""
    return [replace(d, is_apart=d.node in nodes) for d in devices]


def _plan_of(sizes: Sizes, devices: Sequence[DeviceCost]) -> Plan:
    """The plan of those that may have layers; the driver runs on the first computer nevertheless."""
    wanted = [device for k, device in enumerate(devices) if not k or not device.is_apart]
    return make_plan(sizes.shape, wanted, sizes.links, measured_tokens=sizes.measured_tokens)


def _reading(sizes: Sizes, plan: Plan, reading: Plan, *, least: int | None) -> Reading:
    most = _most_tokens(sizes)
    if least is None:
        gains = (
            n
            for n in _LENGTHS
            if first_token_ms(sizes, plan, reading, n) < first_token_ms(sizes, plan, None, n)
        )
        least = next(gains, LEAST_TOKENS)
    prompt = sizes.prompt
    if prompt is None or not least <= prompt <= most:
        prompt = max(least, min(USUAL_PROMPT, most, sizes.context // 2))
    apart, alone = (first_token_ms(sizes, plan, who, prompt) for who in (reading, None))
    readers, answerers = (_names(one) for one in (reading, plan))
    reads = f"{readers} reads your prompt" if _is_one(reading) else f"{readers} read your prompt"
    writes = f"{answerers} writes the answer" if _is_one(plan) else f"{answerers} write the answer"
    lines = [
        f"{reads}, {writes}: first token of a prompt of {prompt:,} tokens after {seconds(apart)} instead"
        f" of {seconds(alone)}.",
        f"Prompts with fewer than {least:,} new tokens are read where they are answered.",
    ]
    if apart > alone:
        lines.append("That is slower than without, but you asked for it.")
    if most < sizes.context:
        lines.append(
            f"So are those of more than {most:,} tokens: their cache is too large to be moved."
        )
    if sizes.shape.picture_tokens:
        lines.append("So are those with pictures.")
    return Reading(plan=reading, least_tokens=least, most_tokens=most, explanation=" ".join(lines))


def _most_tokens(sizes: Sizes) -> int:
    """Tokens of the longest prompt whose cache may be moved."""
    low, high = 0, sizes.context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if sizes.cache_bytes(middle) <= sizes.most_bytes else (low, middle - 1)
        )
    return low


def _is_one(plan: Plan) -> bool:
    return len({stage.node for stage in plan.stages}) == 1


def _names(plan: Plan) -> str:
    names = list(dict.fromkeys(stage.name for stage in plan.stages))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
