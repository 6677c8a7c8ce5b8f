"""The kernel of the head: it computes the logits of one token's hidden states, and the largest of them."""

from dataclasses import dataclass

from llvmlite import ir

from potluck.engine.kernels.decoding.forms import FloatForm, PackedForm
from potluck.engine.kernels.decoding.streams_kernel import StreamCalls, StreamShape, emit_shares
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.threads_kernel import OnThreads, emit_run
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I32,
    I64,
    KIND_F32,
    POINTER,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Address, Number, Pointer, Record
from potluck.engine.kernels.writing.values import Value
from potluck.model.families.facts import NormKind
from potluck.model.formats import PackedFormat


class HeadStep(Record):
    """What the head reads and writes."""

    hidden = Address(KIND_F32)
    norm = Address(KIND_F32)
    records = Address(I8)  # the input of the product
    matrix = Address(I8)
    addend = Address(KIND_F32)  # or null
    logits = Address(KIND_F32)
    block = Address(KIND_F32)  # of residual streams: what the norm reads, and the next five
    normed = Address(KIND_F32)
    stream_shares = Address(KIND_F32)
    mix_matrix = Address(KIND_F32)
    mix_base = Address(KIND_F32)
    mix_scale = Address(KIND_F32)
    job = Address(I8)
    shares = Number()


# A `HeadStep` → the first of the largest logits; -1: one of them is not finite.
HEAD = ir.FunctionType(I64, [POINTER])

_LANES = 16
_INFINITY_BITS = 0x7F800000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What a kernel of the head is written for."""

    hidden: int
    rows: int
    weight_format: PackedFormat
    epsilon: float  # of the norm
    norm_kind: NormKind = "root mean square"
    streams: StreamShape | None = None
    averages: bool = False  # the norm reads the mean of the streams, else what a mix makes of them


def emit_head(module: ir.Module, name: str, path: Path, shape: HeadShape) -> ir.Function:
    """Write logits = norm(hidden) Wᵀ + addend; hidden states, weights of the norm, addend and logits are f32."""
    run = emit_run(module, f"{name}_run", path)
    shares = None
    if shape.streams is not None and not shape.averages:
        shares = emit_shares(module, f"{name}_shares", path, shape.streams, is_head=True)
    e = Emitter(ir.Function(module, HEAD, name), path)
    given = HeadStep.load(e.arguments[0])
    threads = OnThreads(e, run, given.job, given.shares)
    form = PackedForm(
        name=name, memory=given.records, threads=threads, weight_format=shape.weight_format
    )
    hidden = given.hidden
    if shape.streams is not None:
        _read_streams(name, threads, given, shape.streams, shares)
        hidden = given.block
    inputs = form.normed(hidden, shape.hidden, given.norm, shape.epsilon, shape.norm_kind)
    form.multiply(given.matrix, inputs, given.logits, given.addend, shape.rows, shape.hidden)
    return e.end(_emit_best(e, given.logits, shape.rows))


def _read_streams(
    name: str, threads: OnThreads, given: HeadStep, shape: StreamShape, shares: ir.Function | None
) -> None:
    """Write what the norm reads of several streams; without `shares`, their mean."""
    calls = StreamCalls(
        e=threads.e,
        shape=shape,
        form=FloatForm(name=name, memory=given.normed, threads=threads, kind=KIND_F32),
        streams=given.hidden,
        shares=given.stream_shares,
    )
    if shares is None:
        calls.mean(given.block)
        return
    mix = given.mix_matrix, given.mix_base, given.mix_scale
    calls.read(mix, shares, given.block, is_head=True)


def _emit_best(e: Emitter, logits: Pointer, count: int) -> Value:
    """Return the index of the first of the largest; -1 where a number is not finite."""
    wide, bits = vector(F32, _LANES), vector(I32, _LANES)
    lowest = constant(wide, -float("inf"))
    best, size = e.variable(lowest), e.variable(constant(bits, 0))
    where = e.variable(constant(bits, 0))
    for span in e.spans(count, _LANES):
        value = logits[span]
        size.value = value.magnitude_bits().at_least(size.value)
        if span.mask is not None:
            value = e.select(span.mask, value, lowest)
        is_better = value > best.value
        here = e.trunc(span.first, I32) + constant(bits, range(_LANES))
        best.value = e.select(is_better, value, best.value)
        where.value = e.select(is_better, here, where.value)
    is_highest = best.value.equals(best.value.highest())
    first = e.select(is_highest, where.value, constant(bits, -1)).reduce("umin")
    is_finite = size.value.reduce("umax") < _INFINITY_BITS
    return e.select(is_finite, e.zext(first, I64), constant(I64, -1))
