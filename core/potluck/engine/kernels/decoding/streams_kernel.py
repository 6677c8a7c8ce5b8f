"""What a kernel of one token does around a block of balanced residual streams: see `model/mixing/streams.py`.

Each step is that of `engine/layers/balanced_streams.py`, in the same order, so that a token has the same bits in a chunk.
"""

from dataclasses import dataclass

import torch
from llvmlite import ir

from potluck.engine.kernels.decoding.forms import FloatForm
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.products.tensors import MixTensors
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_exp, emit_inverse_rms, emit_sigmoid
from potluck.engine.kernels.writing.ir_types import (
    F32,
    I32,
    KIND_F32,
    NULL,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Value
from potluck.model.mixing.streams import Streams

LANES = 16

# Products with the matrix, which are overwritten by shares; the base; the scales.
SHARES = ir.FunctionType(VOID, [POINTER, POINTER, POINTER])


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """What is written for the streams of a model."""

    count: int
    hidden: int  # numbers of one stream
    rounds: int
    eps: float
    norm_epsilon: float

    @classmethod
    def of(cls, streams: Streams) -> "StreamShape":
        balance = streams.balance
        assert balance is not None
        return cls(
            count=streams.count,
            hidden=streams.hidden_size,
            rounds=balance.rounds,
            eps=balance.eps,
            norm_epsilon=balance.norm_eps,
        )

    @property
    def width(self) -> int:
        return self.count * self.hidden

    def rows(self, *, is_head: bool = False) -> int:
        """Of a matrix, and shares that are made of its products."""
        return self.count if is_head else self.count * (2 + self.count)


def has_stream_kernels(streams: Streams) -> bool:
    """Whether kernels mix such streams: what goes from stream to stream is one vector."""
    return streams.balance is not None and streams.count**2 <= LANES


def check_mix(mix: MixTensors, shape: StreamShape, *, is_head: bool = False) -> None:
    """Check the tensors of a block, since the kernel checks nothing."""
    rows = shape.rows(is_head=is_head)
    assert mix.matrix.shape == (rows, shape.width)
    assert mix.base.shape == (rows,)
    assert mix.scale.shape == (1 if is_head else 3,)
    for one in mix:
        assert one.dtype == torch.float32
        assert one.is_contiguous()


def emit_shares(
    module: ir.Module, name: str, path: Path, shape: StreamShape, *, is_head: bool = False
) -> ir.Function:
    """Write what makes shares of products: of each stream in the input, in the result, and from stream to stream."""
    e = Emitter(internal(ir.Function(module, SHARES, name)), path)
    shares, base, scale = (argument.of(KIND_F32) for argument in e.arguments)
    count = shape.count

    def scaled(kind: int, size: int) -> tuple[Span, Value]:
        mask = None if size == LANES else e.first_lanes(e.index(size), LANES)
        span = Span(e.index(kind * count), LANES, mask)
        factor = e.splat(scale[e.index(kind)], LANES)
        return span, shares[span] * factor + base[span]

    span, own = scaled(0, count)
    shares[span] = emit_sigmoid(e, own) + shape.eps
    if not is_head:
        span, given = scaled(1, count)
        shares[span] = emit_sigmoid(e, given) * 2.0
        span, between = scaled(2, count * count)
        shares[span] = _balanced(e, between, shape)
    return e.end()


def _balanced(e: Emitter, between: Value, shape: StreamShape) -> Value:
    """Return S·S numbers, row by row, of which the sums over rows and over columns are nearly one."""
    count = shape.count
    in_rows, in_columns = (
        [_spread(count, place, is_row=is_row) for place in range(count)] for is_row in (False, True)
    )

    def each(value: Value, lanes: list[Operand]) -> list[Value]:
        return [e.shuffle_vector(value, value, one) for one in lanes]

    def total(value: Value, lanes: list[Operand]) -> Value:
        first, *others = each(value, lanes)
        for one in others:
            first = first + one
        return first

    most, *others = each(between, in_rows)
    for one in others:
        most = one.at_least(most)
    parts = emit_exp(e, between - most)
    parts = parts / total(parts, in_rows) + shape.eps
    parts = parts / (total(parts, in_columns) + shape.eps)
    balanced = e.variable(parts)
    with e.loop(1, shape.rounds):
        parts = balanced.value
        parts = parts / (total(parts, in_rows) + shape.eps)
        balanced.value = parts / (total(parts, in_columns) + shape.eps)
    return balanced.value


def _spread(count: int, place: int, *, is_row: bool) -> Operand:
    """Lanes that give each number of a matrix that of its column in this row, or of its row in this column."""
    lanes = [
        (place * count + lane % count if is_row else lane // count * count + place)
        if lane < count * count
        else lane
        for lane in range(LANES)
    ]
    return constant(vector(I32, LANES), lanes)


@dataclass(frozen=True, kw_only=True)
class StreamCalls:
    """Emits what reads a token's streams, and writes to them."""

    e: Emitter
    shape: StreamShape
    form: FloatForm  # of a matrix of f32; its memory has room for all normed numbers
    streams: Pointer
    shares: Pointer

    def read(
        self,
        block: tuple[Pointer, Pointer, Pointer],
        shares: ir.Function,
        out: Pointer,
        *,
        is_head: bool = False,
    ) -> None:
        """Write a block's input to `out`; its shares stay.

        Args:
            block: matrix, base and scale.
            shares: made by `emit_shares`.
            out: room for the numbers of a stream.
            is_head: whether it only reads.
        """
        e, shape = self.e, self.shape
        matrix, base, scale = block
        normed, epsilon = self.form.memory.of(KIND_F32), constant(F32, shape.norm_epsilon)
        inverse = emit_inverse_rms(e, self.streams, shape.width, epsilon)
        for span in e.spans(shape.width, LANES):
            normed[span] = self.streams[span] * inverse
        rows = shape.rows(is_head=is_head)
        self.form.multiply(matrix, normed, self.shares, NULL, rows, shape.width)
        e.call(shares, [self.shares, base, scale])
        own = [e.splat(self.shares[e.index(one)], LANES) for one in range(shape.count)]
        for span in e.spans(shape.hidden, LANES):
            total = self._of(0, span) * own[0]
            for index in range(1, shape.count):
                total = total + self._of(index, span) * own[index]
            out[span] = total

    def write(self, result: Pointer) -> None:
        """Make the streams what they become with a block's result."""
        e, count = self.e, self.shape.count
        factors = [
            [e.splat(self.shares[e.index(count * (1 + row) + one)], LANES) for one in range(count)]
            for row in range(1 + count)
        ]
        for span in e.spans(self.shape.hidden, LANES):
            added, old = result[span], [self._of(index, span) for index in range(count)]
            for target in range(count):
                total = added * factors[0][target]
                for index in range(count):
                    total = total + old[index] * factors[1 + index][target]
                (self.streams + target * self.shape.hidden)[span] = total

    def mean(self, out: Pointer) -> None:
        """Write the mean of the streams."""
        for span in self.e.spans(self.shape.hidden, LANES):
            total = self._of(0, span)
            for index in range(1, self.shape.count):
                total = total + self._of(index, span)
            out[span] = total / float(self.shape.count)

    def _of(self, index: int, span: Span) -> Value:
        return (self.streams + index * self.shape.hidden)[span]
