"""Say how much memory is missing where a model does not fit."""

from bisect import bisect_left
from dataclasses import replace

from potluck.plan.cost import ModelShape
from potluck.plan.route import Problem
from potluck.plan.search import Stop, fits, never
from potluck.plan.spans import Span, held_bytes, span_of


def missing_memory(shape: ModelShape, problem: Problem, stop: Stop = never) -> int:
    """The memory of the smallest further device with which the model fits.

    It is the size of some range of layers, found by bisection over what `fits` says. What the devices
    have left over, too little for another layer, does not count.
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
            sizes[: sizes.index(shape.model_memory)],  # with everything on it, it fits
            True,
            key=lambda size: fits(_with_device(problem, span_of(shape, no_time, size)), stop),
        )
    ]


def _with_device(problem: Problem, span: Span) -> Problem:
    """The question with one device more, and without any device or computer that must take part."""
    return replace(
        problem,
        spans=(*problem.spans, span),
        head_ms=(*problem.head_ms, 0.0),
        enter_ms=(*problem.enter_ms, 0.0),
        leave_ms=(*problem.leave_ms, 0.0),
        hop_ms=(*((*row, 0.0) for row in problem.hop_ms), (0.0,) * (problem.size + 1)),
        workers=(*problem.workers, 0),
        required=frozenset(),
        min_workers=0,
    )
