"""What the kernels of mixers with a recurrent state share: the convolution of their inputs, and the columns of a state."""

from collections.abc import Iterator

from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_silu
from potluck.engine.kernels.writing.ir_types import F32, vector
from potluck.engine.kernels.writing.memory import Pointer, Record, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.mixing.recurrent import RecurrentSizes

LANES = 16
WIDE = vector(F32, LANES)
_COLUMNS = 4  # vectors of columns at a time: with 128 rows they take 32 kB


def emit_convolution(
    e: Emitter,
    shape: RecurrentSizes,
    given: Record,
    channel: Value,
    place: Value,
    span: Span,
    bias: Pointer | None = None,
) -> None:
    """Put a vector of numbers of all tokens, in their order, through the convolution and SiLU, where it is.

    Args:
        e: of the kernel.
        shape: of the mixer.
        given: the kernel's arguments, with `inputs`, which are overwritten, `stride`, `tokens`, `convolution` and `before`.
        channel: from which on `span` counts, among the channels of the convolution.
        place: the same, among a token's inputs.
        span: the vector.
        bias: (channels,); None: there is none.
    """
    before, weights = given["before"] + channel, given["convolution"] + channel
    factors = [(weights + i * shape.channels)[span] for i in range(shape.inputs)]
    added = None if bias is None else (bias + channel)[span]
    last = [e.variable((before + i * shape.channels)[span]) for i in range(shape.inputs - 1)]
    with e.loop(0, given["tokens"]) as token:
        here = given["inputs"] + token * given["stride"] + place
        numbers = [*(one.value for one in last), here[span]]
        total = added
        for number, factor in zip(numbers, factors, strict=True):
            total = number * factor if total is None else e.multiply_add(number, factor, total)
        assert total is not None
        here[span] = emit_silu(e, total)
        for one, number in zip(last, numbers[1:], strict=True):
            one.value = number
    for i, one in enumerate(last):
        (before + i * shape.channels)[span] = one.value


def each_columns(e: Emitter, size: int) -> Iterator[list[Span]]:
    """Write the body for some columns of a head's state at a time, which stay in the first cache."""
    step = _COLUMNS * LANES
    whole = size // step * step
    if whole:
        with e.loop(0, whole, step) as first:
            yield [Span(first + i * LANES, LANES) for i in range(_COLUMNS)]
    if whole < size:
        spans: list[Span] = []
        for first in range(whole, size, LANES):
            left = size - first
            mask = None if left >= LANES else e.first_lanes(e.index(left), LANES)
            spans.append(Span(e.index(first), LANES, mask))
        yield spans
