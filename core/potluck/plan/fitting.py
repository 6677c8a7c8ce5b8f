"""Find how much memory is missing if a model does not fit."""

from bisect import bisect_left
from dataclasses import replace

from potluck.plan.cost import ModelShape
from potluck.plan.route import Problem
from potluck.plan.search import Stop, fits
from potluck.plan.spans import Span, held_bytes, span_of


def missing_memory(shape: ModelShape, problem: Problem, stop: Stop) -> int:
    """The memory of the smallest additional device with which the model would fit.

    This is the size of some range of layers, found by bisection with `fits`. Memory that a device
    has left over, too little for another layer, does not count.
    """
    held, end = held_bytes(shape), shape.num_layers
    sizes = sorted(
        {
            held[stop] - held[start] + shape.ends_memory(first=start == 0, last=stop == end)
            for start in range(end)
            for stop in range(start + 1, end + 1)
        }
    )
    no_time = [0.0] * len(shape.layer_bytes)
    return sizes[
        bisect_left(
            sizes[: sizes.index(shape.model_memory)],  # with the whole model on it, it fits surely
            True,
            key=lambda size: fits(_with_device(problem, span_of(shape, no_time, size)), stop),
        )
    ]


def _with_device(problem: Problem, span: Span) -> Problem:
    """The problem with one more device, and without devices or workers that must take part."""
    return replace(
        problem,
        spans=(*problem.spans, span),
        head_ms=(*problem.head_ms, 0.0),
        enter_ms=(*problem.enter_ms, 0.0),
        leave_ms=(*problem.leave_ms, 0.0),
        hop_ms=(*((*row, 0.0) for row in problem.hop_ms), (0.0,) * (problem.size + 1)),
        workers=(*problem.workers, 0),
        uses=(*problem.uses, 1 << max(problem.uses).bit_length()) if problem.uses else (),
        required=frozenset(),
        min_workers=0,
    )
