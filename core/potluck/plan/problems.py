"""The planner's question in numbers: what a search needs of a model, the devices and the links."""

from collections.abc import Sequence
from dataclasses import replace

from potluck.ids import NodeId
from potluck.plan.cost import TOKEN_MESSAGE_BYTES, DeviceCost, Links, ModelShape, hop_between
from potluck.plan.fitting import missing_memory
from potluck.plan.route import Problem
from potluck.plan.search import Stop, fits, never
from potluck.plan.spans import held_bytes, span_of


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
