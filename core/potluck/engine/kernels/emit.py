"""LLVM IR in the words of the kernels: vectors, loops, variables, numbers of 16 bits.

Everything is written for vectors of 16 or 32 numbers; LLVM splits them into what the processor has.
Variables are stack slots, which LLVM turns into registers. Arithmetic is that of IEEE 754, in the order
written and without contraction, so that every processor packs a weight into the same bytes; only
`multiply_add` leaves it to the processor whether there is one rounding or two.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from potluck.engine.kernels.ir_types import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    KIND_BF16,
    KIND_F16,
    KIND_F32,
    KIND_INT8,
    POINTER,
    VOID,
    Value,
    constant,
    vector,
)
from potluck.engine.kernels.paths import Path

# Added to and taken from a small f32, it leaves the nearest integer, ties to even.
_ROUND = 1.5 * 2**23


def _index(value: Value | int) -> Value:
    return constant(I64, value) if isinstance(value, int) else value


class Variable:
    """A number that changes while the kernel runs."""

    def __init__(self, emitter: "Emitter", typ: ir.Type) -> None:
        self._emitter, self.type = emitter, typ
        with emitter.goto_entry_block():
            self._slot = emitter.alloca(typ)

    @property
    def value(self) -> Value:
        return self._emitter.load(self._slot, typ=self.type)

    @value.setter
    def value(self, value: Value) -> None:
        self._emitter.store(value, self._slot)


if TYPE_CHECKING:

    class _Builder:
        """llvmlite has no types, and those inferred are wrong: any method, of any value."""

        block: Any
        module: ir.Module

        def __init__(self, block: object) -> None: ...
        def __getattr__(self, name: str) -> Callable[..., Any]: ...

else:
    _Builder = ir.IRBuilder


class Emitter(_Builder):
    """An IR builder that knows what the kernels are made of."""

    def __init__(self, function: ir.Function, path: Path) -> None:
        super().__init__(function.append_basic_block("entry"))
        # The entry block keeps only stack slots, so that they can be added while the body is written.
        body = function.append_basic_block("body")
        self.branch(body)
        self.position_at_end(body)
        self.path = path

    def variable(self, start: Value) -> Variable:
        variable = Variable(self, start.type)
        variable.value = start
        return variable

    @contextmanager
    def loop(self, start: Value | int, stop: Value | int, step: Value | int = 1) -> Iterator[Value]:
        """Once for each of `range(start, stop, step)`, i64."""
        start, stop, step = (_index(value) for value in (start, stop, step))
        before = self.block
        head, body, done = (self.append_basic_block(part) for part in ("head", "loop", "done"))
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        index.add_incoming(start, before)
        self.cbranch(self.icmp_signed("<", index, stop), body, done)
        self.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, step), self.block)
        self.branch(head)
        self.position_at_end(done)

    @contextmanager
    def forever(self) -> Iterator[Callable[[Value], None]]:
        """Again and again, until `leave(condition)`, which is what the loop is given, is true."""
        again, done = self.append_basic_block("again"), self.append_basic_block("done")
        self.branch(again)
        self.position_at_end(again)

        def leave(condition: Value) -> None:
            stay = self.append_basic_block("stay")
            self.cbranch(condition, done, stay)
            self.position_at_end(stay)

        yield leave
        self.branch(again)
        self.position_at_end(done)

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[Value]) -> Value:
        """Call an intrinsic by its full name."""
        declared = self.module.globals.get(name)
        if declared is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            declared = ir.Function(self.module, kind, name)
        return self.call(declared, list(arguments))

    def table(self, name: str, numbers: Sequence[float]) -> Value:
        """The address of constant f32."""
        typ = ir.ArrayType(F32, len(numbers))
        table: Any = ir.GlobalVariable(self.module, typ, self.module.get_unique_name(name))
        table.initializer = ir.Constant(typ, list(numbers))
        table.global_constant, table.linkage = True, "internal"
        return table

    def stack(self, typ: ir.Type, count: int) -> Value:
        """Room for so many, until the kernel returns, at the start of a cache line."""
        with self.goto_entry_block():
            room = self.alloca(typ, size=constant(I64, count))
        room.align = 64
        room.type = POINTER  # llvmlite insists on the type that was asked for
        return room

    def at(self, pointer: Value, offset: Value | int, scale: Value | int = 1) -> Value:
        """The address `offset * scale` bytes further."""
        offset = self.mul(_index(offset), _index(scale)) if scale != 1 else _index(offset)
        return self.gep(pointer, [offset], source_etype=I8)

    def fetch(self, pointer: Value, typ: ir.Type) -> Value:
        return self.load(pointer, typ=typ, align=1)

    def put(self, value: Value, pointer: Value) -> None:
        self.store(value, pointer, align=1)

    def fetch_some(self, pointer: Value, typ: ir.VectorType, mask: Value) -> Value:
        """The lanes of the mask, the others zero and their memory not touched."""
        name = f"llvm.masked.load.v{typ.count}{typ.element.intrinsic_name}.p0"
        # The alignment became an attribute in LLVM 22, which still reads the older form.
        arguments = [pointer, constant(I32, 1), mask, constant(typ, 0)]
        return self.intrinsic(name, typ, arguments)

    def put_some(self, value: Value, pointer: Value, mask: Value) -> None:
        typ = value.type
        name = f"llvm.masked.store.v{typ.count}{typ.element.intrinsic_name}.p0"
        self.intrinsic(name, VOID, [value, pointer, constant(I32, 1), mask])

    def prefetch(self, pointer: Value) -> None:
        read, keep, data = (constant(I32, value) for value in (0, 3, 1))
        self.intrinsic("llvm.prefetch.p0", VOID, [pointer, read, keep, data])

    def splat(self, scalar: Value, count: int) -> Value:
        """The scalar in every lane."""
        typ = vector(scalar.type, count)
        one = self.insert_element(constant(typ, 0), scalar, constant(I32, 0))
        return self.shuffle_vector(one, one, constant(vector(I32, count), 0))

    def lanes(self, value: Value, first: int, count: int) -> Value:
        """Some neighbouring lanes as a vector of their own."""
        if (first, count) == (0, value.type.count):
            return value
        chosen = constant(vector(I32, count), range(first, first + count))
        return self.shuffle_vector(value, value, chosen)

    def parts(self, value: Value, count: int) -> list[Value]:
        """The vector cut into so many of equal length."""
        size = value.type.count // count
        return [self.lanes(value, index * size, size) for index in range(count)]

    def join(self, parts: Sequence[Value]) -> Value:
        """Two, four… vectors as one."""
        joined = list(parts)
        while len(joined) > 1:
            lanes = constant(vector(I32, 2 * joined[0].type.count), range(2 * joined[0].type.count))
            pairs = zip(joined[::2], joined[1::2], strict=True)
            joined = [self.shuffle_vector(left, right, lanes) for left, right in pairs]
        return joined[0]

    def first_lanes(self, wanted: Value, count: int) -> Value:
        """A mask of the lanes below `wanted`, an i64."""
        numbers = constant(vector(I64, count), range(count))
        return self.icmp_signed("<", numbers, self.splat(wanted, count))

    def reduce(self, operation: str, value: Value) -> Value:
        """One integer of all lanes: `add`, `umax`. Of floats see `total`."""
        typ = value.type
        name = f"llvm.vector.reduce.{operation}.v{typ.count}{typ.element.intrinsic_name}"
        return self.intrinsic(name, typ.element, [value])

    def total(self, value: Value) -> Value:
        """The sum of an f32 vector's lanes, halves added to halves: the same on every processor."""
        return self._halved(value, self.fadd)

    def total_of_each(self, vectors: Sequence[Value]) -> Value:
        """One vector with the sums of as many vectors as it has lanes."""
        vectors = list(vectors)
        while (half := len(vectors) // 2) > 0:
            masks = self._swap_masks(vectors[0].type.count, half)
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [
                self.fadd(*(self.shuffle_vector(*pair, mask) for mask in masks)) for pair in pairs
            ]
        return vectors[0]

    def highest(self, value: Value) -> Value:
        """The largest of an f32 vector's lanes."""
        return self._halved(value, self._larger)

    def _larger(self, one: Value, other: Value) -> Value:
        return self.select(self.fcmp_ordered(">", one, other), one, other)

    def _halved(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        while value.type.count > 1:
            value = combine(*self.parts(value, 2))
        return self.extract_element(value, constant(I32, 0))

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """Columns of a square of vectors, in log2(n) rounds of swapped quarters."""
        count = len(rows)
        rows, half = list(rows), count // 2
        while half:
            masks = self._swap_masks(count, half)
            for index in range(count):
                if not index & half:
                    pair = rows[index], rows[index + half]
                    rows[index], rows[index + half] = (
                        self.shuffle_vector(*pair, mask) for mask in masks
                    )
            half //= 2
        return rows

    def vectors(
        self, count: Value, lanes: int, body: Callable[[Value, Value | None], None]
    ) -> None:
        """`body(index, mask)` for each vector of `count` numbers, with a mask for what is left over."""
        left = self.srem(count, constant(I64, lanes))
        whole = self.sub(count, left)
        with self.loop(0, whole, lanes) as index:
            body(index, None)
        with self.if_then(self.icmp_signed(">", left, constant(I64, 0))):
            body(whole, self.first_lanes(left, lanes))

    def _swap_masks(self, count: int, half: int) -> tuple[Value, Value]:
        """Of two vectors: what each has in the half it keeps, and what moves to it from the other."""
        stay, move = [], []
        for lane in range(count):
            upper = bool(lane & half)
            stay.append(count + lane - half if upper else lane)
            move.append(count + lane if upper else lane + half)
        typ = vector(I32, count)
        return constant(typ, stay), constant(typ, move)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """A b + c, in one instruction where there is one."""
        lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        return self.intrinsic(f"llvm.fmuladd.{lanes}f32", a.type, [a, b, c])

    def limit(self, value: Value, least: float, most: float) -> Value:
        """The value, but within the limits; NaN becomes one of them."""
        typ = value.type
        least_, most_ = constant(typ, least), constant(typ, most)
        value = self._larger(value, least_)
        return self.select(self.fcmp_ordered("<", value, most_), value, most_)

    def rounded(self, value: Value) -> Value:
        """The nearest integer, ties to even, as f32; for values below 2**22."""
        magic = constant(value.type, _ROUND)
        return self.fsub(self.fadd(value, magic), magic)

    def magnitude_bits(self, value: Value) -> Value:
        """|value| as integers, which are in the order of the numbers; NaN and infinity are highest."""
        bits = vector(I32, value.type.count)
        return self.and_(self.bitcast(value, bits), constant(bits, 0x7FFFFFFF))

    def from_half(self, value: Value) -> Value:
        """A vector of f16 as f32."""
        count = value.type.count
        wide, bits = vector(F32, count), vector(I32, count)
        if self.path.half_in_hardware:
            return self.fpext(value, wide)
        raw = self.zext(self.bitcast(value, vector(I16, count)), bits)
        sign = self.shl(self.and_(raw, constant(bits, 0x8000)), constant(bits, 16))
        moved = self.shl(self.and_(raw, constant(bits, 0x7FFF)), constant(bits, 13))
        size = self.fmul(self.bitcast(moved, wide), constant(wide, 2.0**112))
        size = self.bitcast(size, bits)
        # Infinity and NaN have the largest exponent of either format.
        is_finite = self.icmp_unsigned("<", moved, constant(bits, 0x7C00 << 13))
        size = self.select(is_finite, size, self.or_(size, constant(bits, 0x7F800000)))
        return self.bitcast(self.or_(size, sign), wide)

    def to_half(self, value: Value) -> Value:
        """A vector of f32 below 65520 as f16, to the nearest, ties to even, as 16-bit integers."""
        count = value.type.count
        wide, bits, short = vector(F32, count), vector(I32, count), vector(I16, count)
        if self.path.half_in_hardware:
            return self.bitcast(self.fptrunc(value, vector(F16, count)), short)
        raw = self.bitcast(value, bits)
        sign = self.lshr(self.and_(raw, constant(bits, 0x80000000)), constant(bits, 16))
        size = self.bitcast(self.and_(raw, constant(bits, 0x7FFFFFFF)), wide)
        small = self.bitcast(self.fmul(size, constant(wide, 2.0**-112)), bits)
        return self.trunc(self.or_(self._cut(small, 13), sign), short)

    def from_bfloat(self, value: Value) -> Value:
        """Vectors of 16-bit integers that are the upper halves of f32."""
        bits = vector(I32, value.type.count)
        raised = self.shl(self.zext(value, bits), constant(bits, 16))
        return self.bitcast(raised, vector(F32, value.type.count))

    def to_bfloat(self, value: Value) -> Value:
        """To the nearest, ties to even; a NaN stays one."""
        count = value.type.count
        cut = self._cut(self.bitcast(value, vector(I32, count)), 16)
        short = vector(I16, count)
        is_nan = self.fcmp_unordered("uno", value, value)
        return self.select(is_nan, constant(short, 0x7FC0), self.trunc(cut, short))

    def _cut(self, bits: Value, count: int) -> Value:
        """Without the lowest bits, rounded by them to nearest, ties to even."""
        typ = bits.type
        odd = self.and_(self.lshr(bits, constant(typ, count)), constant(typ, 1))
        nudge = self.add(odd, constant(typ, (1 << (count - 1)) - 1))
        return self.lshr(self.add(bits, nudge), constant(typ, count))

    def fetch_numbers(
        self, pointer: Value, kind: int, count: int, mask: Value | None = None
    ) -> Value:
        """Numbers of a kind as f32; those outside the mask are zero."""
        # Half is not a type that all can load.
        typ = vector((F32, I16, I16, I8)[kind], count)
        raw = self.fetch(pointer, typ) if mask is None else self.fetch_some(pointer, typ, mask)
        if kind == KIND_F32:
            return raw
        if kind == KIND_INT8:
            return self.sitofp(raw, vector(F32, count))
        if kind == KIND_BF16:
            return self.from_bfloat(raw)
        return self.from_half(self.bitcast(raw, vector(F16, count)))

    def put_numbers(
        self, value: Value, pointer: Value, kind: int, mask: Value | None = None
    ) -> None:
        """Store f32 as floats of a kind; only those of the mask."""
        if kind == KIND_BF16:
            value = self.to_bfloat(value)
        elif kind == KIND_F16:
            value = self.to_half(value)
        if mask is None:
            self.put(value, pointer)
        else:
            self.put_some(value, pointer, mask)

    @contextmanager
    def each_kind(self, kind: Value, kinds: Sequence[int]) -> Iterator[Iterator[int]]:
        """Write code once for each kind; the one that `kind` says runs."""
        done = self.append_basic_block("done")

        def cases() -> Iterator[int]:
            for number in kinds:
                this = self.append_basic_block(f"kind_{number}")
                other = self.append_basic_block("other")
                self.cbranch(self.icmp_signed("==", kind, constant(I32, number)), this, other)
                self.position_at_end(this)
                yield number
                self.branch(done)
                self.position_at_end(other)

        yield cases()
        self.branch(done)
        self.position_at_end(done)
