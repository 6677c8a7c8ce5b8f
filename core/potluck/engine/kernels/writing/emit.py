"""What a kernel is written with: the builder of `values`, with loops, variables and functions of vectors.

    e = Emitter(ir.Function(module, KIND, name), path)
    x, out = (argument.of(KIND_F32) for argument in e.arguments)
    for span in e.spans(width, 16):
        out[span] = x[span] * 2.0
    return e.end()

Everything is written for vectors of 16 or 32 numbers; LLVM splits them into what the processor has.
Variables are stack slots, which LLVM turns into registers. Every processor packs a weight into the same
bytes and computes the same bits, since each operation is written down. Values, pointers and records are in
`values` and `memory`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.fused import emit_fused
from potluck.engine.kernels.writing.ir_types import (
    I8,
    I32,
    I64,
    POINTER,
    VOID,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.writing.memory import Pointer, Span
from potluck.engine.kernels.writing.values import Builder, Value


class Variable:
    """A variable of the kernel: a stack slot, which LLVM turns into a register."""

    def __init__(self, emitter: "Emitter", typ: ir.Type) -> None:
        self._emitter, self.type = emitter, typ
        with emitter.goto_entry_block():
            self._slot = emitter.alloca(typ)

    @property
    def value(self) -> Value:
        return self._emitter.load(self._slot, typ=self.type)

    @value.setter
    def value(self, value: Operand) -> None:
        self._emitter.store(value, self._slot)


class Emitter(Builder):
    """Writes one function."""

    def __init__(self, function: ir.Function, path: Path) -> None:
        super().__init__(function, path)
        self.arguments: list[Any] = [self.value(argument) for argument in function.args]

    def value(self, raw: Operand) -> Value:
        """The value with operators; an address becomes a pointer to bytes."""
        if isinstance(raw, Value) or raw.type != POINTER:
            return super().value(raw)
        return Pointer(self, raw, I8)

    def end(self, result: Operand = None) -> ir.Function:
        """Return from the function, with its result if it has one; then it is written."""
        if result is None:
            self.ret_void()
        else:
            self.ret(result)
        return self.function

    def variable(self, start: Operand) -> Variable:
        variable = Variable(self, start.type)
        variable.value = start
        return variable

    @contextmanager
    def loop(self, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Value]:
        """The body runs for each number of `range(start, stop, step)`, an i64."""
        start, stop, step = (self.index(value) for value in (start, stop, step))
        before = self.block
        head, body, done = (self.append_basic_block(part) for part in ("head", "loop", "done"))
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        index.add_incoming(start, before)
        self.cbranch(index < stop, body, done)
        self.position_at_end(body)
        yield index
        index.add_incoming(index + step, self.block)
        self.branch(head)
        self.position_at_end(done)

    @contextmanager
    def forever(self) -> Iterator[Callable[[Operand], None]]:
        """The body runs until the condition of a `leave(condition)` is true; the loop yields `leave`."""
        again, done = self.append_basic_block("again"), self.append_basic_block("done")
        self.branch(again)
        self.position_at_end(again)

        def leave(condition: Operand) -> None:
            stay = self.append_basic_block("stay")
            self.cbranch(condition, done, stay)
            self.position_at_end(stay)

        yield leave
        self.branch(again)
        self.position_at_end(done)

    def spans(self, count: Operand, lanes: int) -> Iterator[Span]:
        """Write the body twice: in a loop over whole vectors, and masked for the rest of `count` numbers."""
        count = self.index(count)
        left = count % lanes
        whole = count - left
        with self.loop(0, whole, lanes) as index:
            yield Span(index, lanes)
        with self.if_then(left > 0):
            yield Span(whole, lanes, self.first_lanes(left, lanes))

    @contextmanager
    def each_kind(self, kind: Value, kinds: Sequence[int]) -> Iterator[Iterator[int]]:
        """Write the body once for each of `kinds`; the kernel runs the one for `kind`, an i64."""
        done = self.append_basic_block("done")

        def cases() -> Iterator[int]:
            for number in kinds:
                this = self.append_basic_block(f"kind_{number}")
                other = self.append_basic_block("other")
                self.cbranch(kind.equals(number), this, other)
                self.position_at_end(this)
                yield number
                self.branch(done)
                self.position_at_end(other)

        yield cases()
        self.branch(done)
        self.position_at_end(done)

    def keep_order(self) -> None:
        """Keep loads and prefetches before and after this place there: no assembly, which none is moved across."""
        self.asm(ir.FunctionType(VOID, []), "", "", [], side_effect=True)

    def first_lanes(self, wanted: Value, count: int) -> Value:
        """A mask of the lanes below `wanted`, an i64."""
        return self.value(constant(vector(I64, count), range(count))) < wanted

    def multiply_add(self, a: Operand, b: Operand, c: Operand) -> Value:
        """Return a · b + c of f32, rounded once."""
        lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        if not self.path.fuses:
            # Written in each place, it would be most of the code.
            values = [self.value(each) for each in (a, b, c)]
            return self.call_shared(f"fused{lanes}", emit_fused, *values)
        return self.intrinsic(f"llvm.fma.{lanes}f32", a.type, [a, b, c])

    def total_of_each(self, vectors: Sequence[Value], lanes: int | None = None) -> Value:
        """Of n vectors with n lanes, a vector whose lane i is the sum of vector i.

        `lanes`: more than there are vectors, which are then every so many-th of all. The result has sums of
        `lanes / n` lanes of each. Such results, in their order, are what gives the whole sums.
        """
        lanes = len(vectors) if lanes is None else lanes
        while (half := len(vectors) // 2) > 0:
            lanes //= 2
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self._halves_added(one, other, lanes) for one, other in pairs]
        return vectors[0]

    def _halves_added(self, one: Value, other: Value, half: int) -> Value:
        """Return lower plus upper parts of `half` lanes, in the lower parts those of the first vector.

        What stays in its lane is taken from both by a blend, which every port of a processor does; only what moves
        goes through its shuffles.
        """
        count = one.type.count
        stay = [lane + count * bool(lane & half) for lane in range(count)]
        move = [(lane ^ half) + count * bool(lane & half) for lane in range(count)]
        parts = (
            self.shuffle_vector(one, other, constant(vector(I32, count), lanes))
            for lanes in (stay, move)
        )
        return next(parts) + next(parts)

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """Transpose n vectors of n lanes, in log2(n) rounds that swap quarters."""
        rows, half = list(rows), len(rows) // 2
        while half:
            for one in range(len(rows)):
                if not one & half:
                    other = one + half
                    rows[one], rows[other] = self._swap_halves((rows[one], rows[other]), half)
            half //= 2
        return rows

    def _swap_halves(self, pair: tuple[Value, Value], half: int) -> tuple[Value, Value]:
        """Swap the upper parts of the first vector with the lower ones of the second, `half` lanes each."""
        count = pair[0].type.count
        stay, move = [], []
        for lane in range(count):
            upper = bool(lane & half)
            stay.append(count + lane - half if upper else lane)
            move.append(count + lane if upper else lane + half)
        first, second = (constant(vector(I32, count), lanes) for lanes in (stay, move))
        return self.shuffle_vector(*pair, first), self.shuffle_vector(*pair, second)
