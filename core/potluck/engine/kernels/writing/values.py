"""Values of LLVM IR with Python's operators, and the builder that emits their instructions.

    total = total + scale * (x - least).at_least(0)

An operator emits one instruction, in the order in which Python evaluates the expression. Integers are
signed, comparisons of floats are ordered (false if one is NaN); for the rest the builder has methods.
A Python number is a constant of the other operand's type, and a scalar fills all lanes of a vector.
Arithmetic is that of IEEE 754, without contraction.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.writing.ir_types import (
    F32,
    F64,
    I32,
    I64,
    POINTER,
    VOID,
    Operand,
    constant,
    internal,
    vector,
)

# Added to and taken from a small f32, it leaves the nearest integer, ties to even.
ROUND = 1.5 * 2**23
_ALIGNED = 16  # bytes; more needs a frame pointer, for which LLVM cannot write the prologue on Windows on arm64


class Builder:
    """Writes one function. It has the methods of llvmlite's IR builder, which here return `Value`."""

    def __init__(self, function: ir.Function, path: Path) -> None:
        self.function, self.path = function, path
        self._rooms: dict[str, Value] = {}  # memory for the arguments of shared functions
        self._builder = ir.IRBuilder(function.append_basic_block("entry"))
        # The entry block keeps only stack slots, so that they can be added while the body is written.
        body = function.append_basic_block("body")
        self.branch(body)
        self.position_at_end(body)

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

    def value(self, raw: Operand) -> "Value":
        """The value with operators."""
        return raw if isinstance(raw, Value) else Value(self, raw)

    def index(self, number: Operand) -> "Value":
        """The number as an i64; a Python integer becomes a constant."""
        return self.value(constant(I64, number) if isinstance(number, int) else number)

    def splat(self, scalar: Operand, count: int) -> "Value":
        """A vector with the scalar in every lane."""
        typ = vector(scalar.type, count)
        one = self.insert_element(constant(typ, 0), scalar, constant(I32, 0))
        return self.shuffle_vector(one, one, constant(vector(I32, count), 0))

    def join(self, parts: Sequence["Value"]) -> "Value":
        """Two, four, eight… vectors as one vector."""
        joined = list(parts)
        while len(joined) > 1:
            count = 2 * joined[0].type.count
            lanes = constant(vector(I32, count), range(count))
            pairs = zip(joined[::2], joined[1::2], strict=True)
            joined = [self.shuffle_vector(left, right, lanes) for left, right in pairs]
        return joined[0]

    def intrinsic(self, name: str, result: ir.Type, arguments: Sequence[Operand]) -> "Value":
        """Call an intrinsic by its full name."""
        declared = self.module.globals.get(name)
        if declared is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            declared = ir.Function(self.module, kind, name)
        return self.call(declared, list(arguments))

    def call_shared(self, name: str, write: "Callable[..., Value]", *arguments: "Value") -> "Value":
        """Call a function of this module, which `write` writes the first time: it takes the arguments.

        For what is long and needed in many places. The arguments and the result are of one type.

        They pass through memory that all calls share: on Windows each call would have some of its own, of a stack whose
        page is soon full.
        """
        (kind,) = {argument.type for argument in arguments}
        function = self.module.globals.get(name)
        if function is None:
            function = internal(ir.Function(self.module, ir.FunctionType(VOID, [POINTER]), name))
            e = type(self)(function, self.path)
            places = e._places(e.value(function.args[0]), kind, len(arguments))
            e.store(
                write(*(e.load(place, typ=kind, align=_ALIGNED) for place in places)),
                places[0],
                align=_ALIGNED,
            )
            e.ret_void()
        if (room := self._rooms.get(name)) is None:
            with self.goto_entry_block():
                room = self._rooms[name] = self.alloca(kind, size=constant(I64, len(arguments)))
            room.raw.align = _ALIGNED
            room.raw.type = POINTER
        places = self._places(room, kind, len(arguments))
        for argument, place in zip(arguments, places, strict=True):
            self.store(argument, place, align=_ALIGNED)
        self.call(function, [room])
        return self.load(room, typ=kind, align=_ALIGNED)

    def _places(self, room: "Value", kind: ir.Type, count: int) -> "list[Value]":
        return [self.gep(room, [constant(I64, index)], source_etype=kind) for index in range(count)]


class Value:
    """A value of LLVM IR, with operators that emit instructions."""

    __slots__ = ("e", "raw")

    def __init__(self, e: Builder, raw: Operand) -> None:
        self.e, self.raw = e, raw

    @property
    def type(self) -> Any:
        return self.raw.type

    def __getattr__(self, name: str) -> Any:
        """What llvmlite asks its operands for."""
        return getattr(self.raw, name)

    def __add__(self, other: Operand) -> "Value":
        return self._emit("add", self, other)

    def __radd__(self, other: Operand) -> "Value":
        return self._emit("add", other, self)

    def __sub__(self, other: Operand) -> "Value":
        return self._emit("sub", self, other)

    def __rsub__(self, other: Operand) -> "Value":
        return self._emit("sub", other, self)

    def __mul__(self, other: Operand) -> "Value":
        return self._emit("mul", self, other)

    def __rmul__(self, other: Operand) -> "Value":
        return self._emit("mul", other, self)

    def __truediv__(self, other: Operand) -> "Value":
        return self._emit("div", self, other)

    def __rtruediv__(self, other: Operand) -> "Value":
        return self._emit("div", other, self)

    def __floordiv__(self, other: Operand) -> "Value":
        """Divide integers, rounding towards zero."""
        return self.e.sdiv(*self._alike(self, other))

    def __mod__(self, other: Operand) -> "Value":
        """Return the remainder of `//`, which has the sign of the dividend."""
        return self.e.srem(*self._alike(self, other))

    def __and__(self, other: Operand) -> "Value":
        return self.e.and_(*self._alike(self, other))

    def __or__(self, other: Operand) -> "Value":
        return self.e.or_(*self._alike(self, other))

    def __xor__(self, other: Operand) -> "Value":
        return self.e.xor(*self._alike(self, other))

    def __lshift__(self, other: Operand) -> "Value":
        return self.e.shl(*self._alike(self, other))

    def __rshift__(self, other: Operand) -> "Value":
        """Shift right; zeros come in from above."""
        return self.e.lshr(*self._alike(self, other))

    def __lt__(self, other: Operand) -> "Value":
        return self._compare("<", other)

    def __le__(self, other: Operand) -> "Value":
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> "Value":
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> "Value":
        return self._compare(">=", other)

    def equals(self, other: Operand) -> "Value":
        return self._compare("==", other)

    def differs(self, other: Operand) -> "Value":
        return self._compare("!=", other)

    def at_least(self, other: Operand) -> "Value":
        """Return the larger one; `other` where a float is NaN."""
        mine, its = self._alike(self, other)
        return self.e.select(mine > its, mine, its)

    def at_most(self, other: Operand) -> "Value":
        """Return the smaller one; `other` where a float is NaN."""
        mine, its = self._alike(self, other)
        return self.e.select(mine < its, mine, its)

    def shifted_signed(self, count: int) -> "Value":
        """Shift right; copies of the sign come in from above."""
        return self.e.ashr(*self._alike(self, count))

    def rounded(self) -> "Value":
        """The nearest integer, ties to even, as f32; for numbers below 2**22."""
        return self + ROUND - ROUND

    def magnitude_bits(self) -> "Value":
        """The bits of |f32|: i32 that are ordered as the numbers, with infinity and NaN highest."""
        return self.e.bitcast(self, vector(I32, self.type.count)) & 0x7FFFFFFF

    def lane(self, index: Operand) -> "Value":
        """One lane of a vector; the index is a Python integer or an i32."""
        place = constant(I32, index) if isinstance(index, int) else index
        return self.e.extract_element(self, place)

    def parts(self, count: int) -> "list[Value]":
        """The vector cut into `count` vectors of equal length."""
        if count == 1:
            return [self]
        size = self.type.count // count
        lanes = [constant(vector(I32, size), range(i * size, (i + 1) * size)) for i in range(count)]
        return [self.e.shuffle_vector(self, self, some) for some in lanes]

    def reduce(self, operation: str) -> "Value":
        """Reduce the lanes of an integer vector by `add`, `umax`…; for floats see `total`."""
        typ = self.type
        name = f"llvm.vector.reduce.{operation}.v{typ.count}{typ.element.intrinsic_name}"
        return self.e.intrinsic(name, typ.element, [self])

    def total(self) -> "Value":
        """The sum of an f32 vector's lanes, half added to half, so that every processor rounds alike."""
        return self._halved(Value.__add__)

    def highest(self) -> "Value":
        """The largest lane of an f32 vector."""
        return self._halved(Value.at_least)

    def _halved(self, combine: "Callable[[Value, Value], Value]") -> "Value":
        value = self
        while value.type.count > 1:
            value = combine(*value.parts(2))
        return value.lane(0)

    @property
    def _is_float(self) -> bool:
        return getattr(self.type, "element", self.type) in (F32, F64)

    def _emit(self, operation: str, left: Operand, right: Operand) -> "Value":
        name = f"f{operation}" if self._is_float else operation
        return getattr(self.e, name)(*self._alike(left, right))

    def _compare(self, sign: str, other: Operand) -> "Value":
        compare = self.e.fcmp_ordered if self._is_float else self.e.icmp_signed
        return compare(sign, *self._alike(self, other))

    def _alike(self, left: Operand, right: Operand) -> "tuple[Value, Value]":
        """Return both as values of one type."""
        if isinstance(left, (int, float)):
            left = constant(self.type, left)
        if isinstance(right, (int, float)):
            right = constant(self.type, right)
        if isinstance(left.type, ir.VectorType) and left.type.element == right.type:
            right = self.e.splat(right, left.type.count)
        elif isinstance(right.type, ir.VectorType) and right.type.element == left.type:
            left = self.e.splat(left, right.type.count)
        return self.e.value(left), self.e.value(right)
