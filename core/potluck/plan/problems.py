"""The planner's question in numbers: what a search needs of a model, the devices and the links."""

from collections.abc import Sequence
from dataclasses import replace

from potluck.ids import NodeId
from potluck.plan.cost import TOKEN_MESSAGE_BYTES, DeviceCost, Links, ModelShape, hop_between
from potluck.plan.fitting import missing_memory
from potluck.plan.route import Problem
from potluck.plan.search import Stop, fits, never
from potluck.plan.spans import held_bytes, span_of
from potluck.plan.stages import StagePlan

# Of the time of a layer with a table on the disk, on a computer that would have to be sent it: 100 GB take a quarter of an
# hour at 1 Gbit/s.
SENT = 100.0
PICTURES = 1 / 1000  # for each token of an answer, of models that see


def make_problem(
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    links: Links,
    min_workers: int = 0,
    *,
    tokens: int = 1,
) -> Problem:
    """The planner's input as a `Problem`; `tokens` travel together."""
    master = devices[0].node
    bits = {
        node: 1 << k
        for k, node in enumerate(dict.fromkeys(d.node for d in devices if d.node != master))
    }

    def ms(source: NodeId, target: NodeId, nbytes: int) -> float:
        return hop_between(links, source, target).ms(tokens * nbytes)

    return Problem(
        held=held_bytes(shape),
        spans=tuple(
            span_of(shape, device.decode_ms, 0 if device.is_apart else device.memory)
            for device in devices
        ),
        head_ms=tuple(device.head_ms for device in devices),
        enter_ms=tuple(ms(master, device.node, TOKEN_MESSAGE_BYTES) for device in devices),
        leave_ms=tuple(ms(device.node, master, TOKEN_MESSAGE_BYTES) for device in devices),
        hop_ms=tuple(
            tuple(ms(a.node, b.node, shape.hidden_bytes) for b in devices) for a in devices
        ),
        workers=tuple(0 if device.is_apart else bits.get(device.node, 0) for device in devices),
        min_workers=min_workers,
    )


def lacking_memory(shape: ModelShape, devices: Sequence[DeviceCost], *, stop: Stop = never) -> int:
    """Bytes of memory that the model lacks in the best division.

    0 if it fits, and if `stop` returns True before that is known. The times of the devices are not
    used.
    """
    problem = make_problem(shape, devices, {})
    return 0 if fits(problem, stop) or stop() else missing_memory(shape, problem, stop)


def at_once(
    shape: ModelShape, devices: Sequence[DeviceCost], tokens: int, measured_tokens: int
) -> list[DeviceCost]:
    """The devices, with the times of several tokens at once. The head is taken to read only."""
    return [
        replace(
            device,
            decode_ms=tuple(
                shape.batch_ms(
                    (kind,), decode, prefill, tokens=tokens, measured_tokens=measured_tokens
                )
                for kind, (decode, prefill) in enumerate(
                    zip(device.decode_ms, device.prefill_ms, strict=True)
                )
            ),
        )
        for device in devices
    ]


def weighed(
    problem: Problem,
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    near: Sequence[StagePlan],
    measured_tokens: int,
) -> Problem:
    """The same, with what a route costs beside the time of its tokens: tables to send, and pictures to read.

    The first device reads the pictures, so a fast one comes first.
    """
    problem = with_tables_at_home(problem, shape, devices, near)
    if not shape.picture_tokens:
        return problem
    chunks = PICTURES * shape.picture_tokens / measured_tokens
    enter_ms = tuple(
        ms + chunks * device.prefill_ms[0]
        for ms, device in zip(problem.enter_ms, devices, strict=True)
    )
    return replace(problem, enter_ms=enter_ms)


def with_tables_at_home(
    problem: Problem,
    shape: ModelShape,
    devices: Sequence[DeviceCost],
    near: Sequence[StagePlan],
) -> Problem:
    """The same, but layers whose table would have to be sent count as slower by `SENT`.

    The master's computer has the files, and one that has had such a layer its table.
    """
    if not shape.has_tables:
        return problem
    homes = {devices[0].node, *(stage.node for stage in near if shape.tables(stage.layers))}
    others = [layer for layer in range(shape.num_layers) if not shape.tables((layer,))]
    spans = tuple(
        span if device.node in homes else span.slower_but_in(others, SENT)
        for span, device in zip(problem.spans, devices, strict=True)
    )
    return replace(problem, spans=spans)
