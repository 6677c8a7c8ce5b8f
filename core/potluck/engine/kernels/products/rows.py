"""Functions that make the input of a product from a row of numbers, or add a row to the hidden states.

A row is read as it is, scaled, normed or gated. It is written as numbers or as the records of a quantised
input, or added to what is there. Each pair of reading and writing is a function, which keeps nothing in memory
between the two.
"""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from llvmlite import ir

from potluck.engine.kernels.layout import (
    GROUP,
    RECORD_BYTES,
    RECORD_SUM,
    RECORD_VALUES,
    RECORD_WORTH,
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import (
    EMIT_ACTIVATION,
    emit_bytes,
    emit_clamped_silu,
    emit_clamped_swiglu,
    emit_gelu_tanh,
    emit_integers,
    emit_inverse_rms,
    emit_moments,
    emit_relu2,
    emit_scale,
    emit_tanh,
    emit_xielu,
)
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I32,
    I64,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.families.facts import Activation, ClampedSilu, ClampedSwiglu, NormKind

_LANES = 16

Reading: TypeAlias = (
    Literal["plain", "scaled", "normed", "centred", "shifted", "softcapped"] | Activation
)
"""plain: x. scaled: x · number. normed: x / sqrt(mean(x x) + number) · weight, a root mean square norm.
centred: likewise of x - mean(x), a layer norm. shifted: the same plus a bias, which is behind the weights. softcapped: number · tanh(x / number).
An activation: activation(gate) · up, of a row that has all gates before as many ups, or pairs of them. Or an
activation of ups alone; `weight` has the numbers of xielu."""

NORMED: Mapping[NormKind, Reading] = {
    "root mean square": "normed",
    "layer": "centred",
    "biased layer": "shifted",
}
"""How a norm of each kind reads a row."""

Writing: TypeAlias = int | Literal["records", "sum"]
"""A kind of numbers; the records of a quantised input; or "sum": f32, added to what is there."""

# The row, f32; how many numbers are written; where; weights of the norm or null; the number in `Reading`.
ROW = ir.FunctionType(VOID, [POINTER, I64, POINTER, POINTER, F32])


def emit_row(
    module: ir.Module, name: str, path: Path, reading: Reading, writing: Writing
) -> ir.Function:
    """Write a function of the type `ROW`, for kernels in the same module of LLVM."""
    record = emit_record(module, f"{name}_record", path) if writing == "records" else None
    e = Emitter(internal(ir.Function(module, ROW, name)), path)
    source, width, out, weight, number = e.arguments
    lanes = _LANES if record is None else GROUP
    row = read_row(e, reading, source.of(KIND_F32), width, weight.of(KIND_F32), number)
    out = out.of(writing if isinstance(writing, int) else KIND_F32)
    for span in e.spans(width, lanes):
        value = row(span)
        if record is not None:
            e.call(record, [value, out.skip(span.first // GROUP, RECORD_BYTES)])
        else:
            out[span] = out[span] + value if writing == "sum" else value
    return e.end()


def read_row(
    e: Emitter,
    reading: Reading,
    x: Pointer,
    width: Operand,
    weight: Pointer | None = None,
    number: Operand = None,
) -> Callable[[Span], Value]:
    """Return what loads the numbers of a span of a row, f32, read in this way."""
    match reading:
        case "plain":
            return x.__getitem__
        case "scaled":
            return lambda span: x[span] * number
        case "normed":
            assert weight is not None
            inverse = emit_inverse_rms(e, x, width, number)
            return lambda span: x[span] * inverse * weight[span]
        case "centred":
            assert weight is not None
            mean, inverse = emit_moments(e, x, width, number)
            return lambda span: (x[span] - mean) * inverse * weight[span]
        case "shifted":
            assert weight is not None
            mean, inverse = emit_moments(e, x, width, number)
            bias = weight + width
            return lambda span: (x[span] - mean) * inverse * weight[span] + bias[span]
        case "softcapped":
            return lambda span: emit_tanh(e, x[span] / number) * number
        case "silu" | "gelu_pytorch_tanh" | "sigmoid" | "softplus" | "exponential":
            activate, ups = EMIT_ACTIVATION[reading], x + width
            return lambda span: activate(e, x[span]) * ups[span]
        case ClampedSilu():
            ups = x + width
            return lambda span: emit_clamped_silu(e, x[span], ups[span], reading)
        case "relu2":
            return lambda span: emit_relu2(x[span])
        case "gelu_alone":
            return lambda span: emit_gelu_tanh(e, x[span])
        case "xielu":
            assert weight is not None
            return lambda span: emit_xielu(e, x[span], weight[0], weight[1])
        case ClampedSwiglu(has_pairs=has_pairs):

            def read(span: Span) -> Value:
                gates, ups = _pairs(e, x, span) if has_pairs else (x[span], (x + width)[span])
                return emit_clamped_swiglu(e, gates, ups, reading)

            return read


def _pairs(e: Emitter, x: Pointer, span: Span) -> tuple[Value, Value]:
    """Load twice as many numbers as the span has: those at even places, and those at odd ones."""
    lanes, first = span.lanes, e.index(span.first) * 2

    def half(number: int) -> Value:
        mask = span.mask
        if mask is not None:  # of each lane for both numbers of its pair
            places = [(number * lanes + lane) // 2 for lane in range(lanes)]
            mask = e.shuffle_vector(mask, mask, constant(vector(I32, lanes), places))
        return x[Span(first + number * lanes, lanes, mask)]

    halves = half(0), half(1)
    even, odd = (
        e.shuffle_vector(*halves, constant(vector(I32, lanes), range(start, 2 * lanes, 2)))
        for start in (0, 1)
    )
    return even, odd


def emit_record(module: ir.Module, name: str, path: Path) -> ir.Function:
    """Write a function that quantises 32 numbers into a record: int8, their scale and sum (see `layout`).

    The scale is the largest magnitude / 127; a group without a number above 1e-30 is zero. A NaN or an
    infinity becomes the scale, so that all results of this token are not finite either.
    """
    kind = ir.FunctionType(VOID, [vector(F32, GROUP), POINTER])
    e = Emitter(internal(ir.Function(module, kind, name)), path)
    numbers, record = e.arguments
    largest = e.bitcast(numbers.magnitude_bits().reduce("umax"), F32)
    scale, inverse = emit_scale(e, largest)
    integers = emit_integers(e, numbers, inverse)
    negative = 0 - integers.reduce("add")
    record[0] = scale
    record.skip(RECORD_SUM)[0] = negative
    record.skip(RECORD_WORTH)[0] = e.sitofp(negative, F32) * scale
    record.skip(RECORD_VALUES)[0] = emit_bytes(e, integers)
    return e.end()
