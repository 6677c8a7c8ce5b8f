"""What a kernel is written with: LLVM IR with vectors, loops, variables and numbers of 16 bits.

Everything is written for vectors of 16 or 32 numbers; LLVM splits them into what the processor has.
Variables are stack slots, which LLVM turns into registers. Arithmetic is that of IEEE 754, in the order
written and without contraction, so that every processor packs a weight into the same bytes; only
`multiply_add` leaves it to the processor whether there is one rounding or two.

There are two layers. `at`, `fetch`, `put` and LLVM's instructions by name are the lower one, for code that
works on bytes, bits and shuffles: packing, unpacking and dot products. `values` and `records` are written
with it, and all other kernels with these: typed pointers, operators, and arguments by name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
    constant,
    vector,
)
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.values import Operand, Pointer, Span, Value

# Added to and taken from a small f32, it leaves the nearest integer, ties to even.
_ROUND = 1.5 * 2**23


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


class Emitter:
    """Writes one function. It has the methods of llvmlite's IR builder, which here return `Value`."""

    def __init__(self, function: ir.Function, path: Path) -> None:
        self.function = function
        self._builder = ir.IRBuilder(function.append_basic_block("entry"))
        # The entry block keeps only stack slots, so that they can be added while the body is written.
        body = function.append_basic_block("body")
        self.branch(body)
        self.position_at_end(body)
        self.path = path
        self.arguments: list[Any] = [self.value(argument) for argument in function.args]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of llvmlite's builder."""
        method = getattr(self._builder, name)

        def emit(*arguments: object, **options: object) -> object:
            made = method(*arguments, **options)
            return self.value(made) if isinstance(made, ir.Instruction) else made

        return emit

    @property
    def block(self) -> Any:
        """Where the next instruction goes."""
        return self._builder.block

    @property
    def module(self) -> ir.Module:
        return self._builder.module

    def value(self, raw: Operand) -> Value:
        """The value with operators; an address becomes a pointer to bytes."""
        if isinstance(raw, Value):
            return raw
        return Pointer(self, raw, I8) if raw.type == POINTER else Value(self, raw)

    def index(self, number: Operand) -> Value:
        """The number as an i64; a Python integer becomes a constant."""
        return self.value(constant(I64, number) if isinstance(number, int) else number)

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
        self.cbranch(self.icmp_signed("<", index, stop), body, done)
        self.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, step), self.block)
        self.branch(head)
        self.position_at_end(done)

    @contextmanager
    def forever(self) -> Iterator[Callable[[Operand], None]]:
        """The body runs until the condition of a `leave(condition)` is true; `leave` is what the loop yields."""
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

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[Operand]) -> Value:
        """Call an intrinsic by its full name."""
        declared = self.module.globals.get(name)
        if declared is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            declared = ir.Function(self.module, kind, name)
        return self.call(declared, list(arguments))

    def table(self, name: str, numbers: Sequence[float]) -> Value:
        """The address of a constant array of f32."""
        typ = ir.ArrayType(F32, len(numbers))
        table: Any = ir.GlobalVariable(self.module, typ, self.module.get_unique_name(name))
        table.initializer = ir.Constant(typ, list(numbers))
        table.global_constant, table.linkage = True, "internal"
        return table

    def stack(self, typ: ir.Type, count: int) -> Pointer:
        """Stack memory for `count` items, aligned to a vector register."""
        with self.goto_entry_block():
            room = self.alloca(typ, size=constant(I64, count))
        # What the system aligns the stack to is enough on aarch64. A larger alignment needs a frame pointer,
        # for which LLVM cannot write the prologue on Windows.
        room.raw.align = 64 if self.path.architecture == "x86_64" else 16
        room.raw.type = POINTER  # llvmlite insists on the type that was asked for
        return Pointer(self, room.raw, typ)

    def in_memory(self, values: Sequence[Operand]) -> Pointer:
        """Store the values on the stack, 8 bytes each: the memory of a record with these fields."""
        memory = self.stack(I64, len(values))
        for index, value in enumerate(values):
            memory[index] = value
        return memory

    def at(self, pointer: Operand, offset: Operand, scale: Operand = 1) -> Pointer:
        """The address `offset * scale` bytes further."""
        offset = (
            self.mul(self.index(offset), self.index(scale)) if scale != 1 else self.index(offset)
        )
        return self.gep(pointer, [offset], source_etype=I8)

    def fetch(self, pointer: Operand, typ: ir.Type) -> Value:
        return self.load(pointer, typ=typ, align=1)

    def put(self, value: Operand, pointer: Operand) -> None:
        self.store(value, pointer, align=1)

    def fetch_some(self, pointer: Operand, typ: ir.VectorType, mask: Operand) -> Value:
        """Load the lanes of the mask. The others are zero, and their memory is not touched."""
        name = f"llvm.masked.load.v{typ.count}{typ.element.intrinsic_name}.p0"
        # The alignment became an attribute in LLVM 22, which still reads the older form.
        arguments = [pointer, constant(I32, 1), mask, constant(typ, 0)]
        return self.intrinsic(name, typ, arguments)

    def put_some(self, value: Operand, pointer: Operand, mask: Operand) -> None:
        typ = value.type
        name = f"llvm.masked.store.v{typ.count}{typ.element.intrinsic_name}.p0"
        self.intrinsic(name, VOID, [value, pointer, constant(I32, 1), mask])

    def prefetch(self, pointer: Operand) -> None:
        read, keep, data = (constant(I32, value) for value in (0, 3, 1))
        self.intrinsic("llvm.prefetch.p0", VOID, [pointer, read, keep, data])

    def splat(self, scalar: Operand, count: int) -> Value:
        """A vector with the scalar in every lane."""
        typ = vector(scalar.type, count)
        one = self.insert_element(constant(typ, 0), scalar, constant(I32, 0))
        return self.shuffle_vector(one, one, constant(vector(I32, count), 0))

    def lanes(self, value: Operand, first: int, count: int) -> Value:
        """A vector of `count` lanes from lane `first` on."""
        if (first, count) == (0, value.type.count):
            return value
        chosen = constant(vector(I32, count), range(first, first + count))
        return self.shuffle_vector(value, value, chosen)

    def parts(self, value: Operand, count: int) -> list[Value]:
        """The vector cut into `count` vectors of equal length."""
        size = value.type.count // count
        return [self.lanes(value, index * size, size) for index in range(count)]

    def join(self, parts: Sequence[Operand]) -> Value:
        """Two, four, eight… vectors as one vector."""
        joined = list(parts)
        while len(joined) > 1:
            lanes = constant(vector(I32, 2 * joined[0].type.count), range(2 * joined[0].type.count))
            pairs = zip(joined[::2], joined[1::2], strict=True)
            joined = [self.shuffle_vector(left, right, lanes) for left, right in pairs]
        return joined[0]

    def first_lanes(self, wanted: Operand, count: int) -> Value:
        """A mask of the lanes below `wanted`, an i64."""
        numbers = constant(vector(I64, count), range(count))
        return self.icmp_signed("<", numbers, self.splat(wanted, count))

    def reduce(self, operation: str, value: Operand) -> Value:
        """Reduce the lanes of an integer vector by `add`, `umax`…; for floats see `total`."""
        typ = value.type
        name = f"llvm.vector.reduce.{operation}.v{typ.count}{typ.element.intrinsic_name}"
        return self.intrinsic(name, typ.element, [value])

    def total(self, value: Operand) -> Value:
        """The sum of an f32 vector's lanes, half added to half, so that every processor rounds alike."""
        return self._halved(value, self.fadd)

    def total_of_each(self, vectors: Sequence[Operand]) -> Value:
        """Of n vectors with n lanes, a vector whose lane i is the sum of vector i."""
        vectors = list(vectors)
        while (half := len(vectors) // 2) > 0:
            masks = self._swap_masks(vectors[0].type.count, half)
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [
                self.fadd(*(self.shuffle_vector(*pair, mask) for mask in masks)) for pair in pairs
            ]
        return vectors[0]

    def highest(self, value: Operand) -> Value:
        """The largest lane of an f32 vector."""
        return self._halved(value, self._larger)

    def _larger(self, one: Operand, other: Operand) -> Value:
        return self.select(self.fcmp_ordered(">", one, other), one, other)

    def _halved(self, value: Operand, combine: Callable[[Operand, Operand], Value]) -> Value:
        while value.type.count > 1:
            value = combine(*self.parts(value, 2))
        return self.extract_element(value, constant(I32, 0))

    def transpose(self, rows: Sequence[Operand]) -> list[Value]:
        """Transpose n vectors of n lanes, in log2(n) rounds that swap quarters."""
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

    def spans(self, count: Operand, lanes: int) -> Iterator[Span]:
        """Write the body twice: in a loop over whole vectors, and masked for the rest of `count` numbers."""
        count = self.index(count)
        left = count % lanes
        whole = count - left
        with self.loop(0, whole, lanes) as index:
            yield Span(index, lanes)
        with self.if_then(left > 0):
            yield Span(whole, lanes, self.first_lanes(left, lanes))

    def _swap_masks(self, count: int, half: int) -> tuple[Operand, Operand]:
        """Shuffle masks for two vectors that swap halves: for the first vector, and for the second."""
        stay, move = [], []
        for lane in range(count):
            upper = bool(lane & half)
            stay.append(count + lane - half if upper else lane)
            move.append(count + lane if upper else lane + half)
        typ = vector(I32, count)
        return constant(typ, stay), constant(typ, move)

    def multiply_add(self, a: Operand, b: Operand, c: Operand) -> Value:
        """Return a · b + c, in one instruction where the processor has one."""
        lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        return self.intrinsic(f"llvm.fmuladd.{lanes}f32", a.type, [a, b, c])

    def limit(self, value: Operand, least: float, most: float) -> Value:
        """The value clamped to the limits; NaN becomes one of them."""
        typ = value.type
        least_, most_ = constant(typ, least), constant(typ, most)
        value = self._larger(value, least_)
        return self.select(self.fcmp_ordered("<", value, most_), value, most_)

    def rounded(self, value: Operand) -> Value:
        """The nearest integer, ties to even, as f32; for values below 2**22."""
        magic = constant(value.type, _ROUND)
        return self.fsub(self.fadd(value, magic), magic)

    def magnitude_bits(self, value: Operand) -> Value:
        """The bits of |value|: integers that are ordered as the numbers, with infinity and NaN highest."""
        bits = vector(I32, value.type.count)
        return self.and_(self.bitcast(value, bits), constant(bits, 0x7FFFFFFF))

    def from_half(self, value: Operand) -> Value:
        """Convert a vector of f16 to f32."""
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

    def to_half(self, value: Operand) -> Value:
        """Convert f32 below 65520 to the bits of f16, rounded to nearest, ties to even."""
        count = value.type.count
        wide, bits, short = vector(F32, count), vector(I32, count), vector(I16, count)
        if self.path.half_in_hardware:
            return self.bitcast(self.fptrunc(value, vector(F16, count)), short)
        raw = self.bitcast(value, bits)
        sign = self.lshr(self.and_(raw, constant(bits, 0x80000000)), constant(bits, 16))
        size = self.bitcast(self.and_(raw, constant(bits, 0x7FFFFFFF)), wide)
        small = self.bitcast(self.fmul(size, constant(wide, 2.0**-112)), bits)
        return self.trunc(self.or_(self._cut(small, 13), sign), short)

    def from_bfloat(self, value: Operand) -> Value:
        """Convert the bits of bf16, which are the upper halves of f32, to f32."""
        bits = vector(I32, value.type.count)
        raised = self.shl(self.zext(value, bits), constant(bits, 16))
        return self.bitcast(raised, vector(F32, value.type.count))

    def to_bfloat(self, value: Operand) -> Value:
        """Convert f32 to the bits of bf16, rounded to nearest, ties to even; NaN stays NaN."""
        count = value.type.count
        cut = self._cut(self.bitcast(value, vector(I32, count)), 16)
        short = vector(I16, count)
        is_nan = self.fcmp_unordered("uno", value, value)
        return self.select(is_nan, constant(short, 0x7FC0), self.trunc(cut, short))

    def _cut(self, bits: Operand, count: int) -> Value:
        """Shift the lowest `count` bits out, rounding to nearest, ties to even."""
        typ = bits.type
        odd = self.and_(self.lshr(bits, constant(typ, count)), constant(typ, 1))
        nudge = self.add(odd, constant(typ, (1 << (count - 1)) - 1))
        return self.lshr(self.add(bits, nudge), constant(typ, count))

    def fetch_numbers(self, pointer: Operand, kind: int, count: int, mask: Operand = None) -> Value:
        """Load numbers of a kind (`KIND_…`) as f32; those outside the mask are zero."""
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
        self, value: Operand, pointer: Operand, kind: int, mask: Operand = None
    ) -> None:
        """Store f32 as floats of a kind (`KIND_…`); only those of the mask."""
        if kind == KIND_BF16:
            value = self.to_bfloat(value)
        elif kind == KIND_F16:
            value = self.to_half(value)
        if mask is None:
            self.put(value, pointer)
        else:
            self.put_some(value, pointer, mask)

    @contextmanager
    def each_kind(self, kind: Operand, kinds: Sequence[int]) -> Iterator[Iterator[int]]:
        """Write the body once for each of `kinds`; the kernel runs the one for `kind`."""
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
