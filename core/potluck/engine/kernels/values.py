"""Values of LLVM IR with Python's operators, and typed pointers that are indexed as arrays.

    out[span] = x[span] * scale + y[span]          # vectors, of whatever kind of numbers lies in memory
    total = total + keys[slot * width + lane]      # one number

An operator emits one instruction, in the order in which Python evaluates the expression. Integers are
signed, comparisons of floats are ordered (false if one is NaN); for the rest the `Emitter` has methods.
A Python number is a constant of the other operand's type, and a scalar fills all lanes of a vector.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from llvmlite import ir

from potluck.engine.kernels.ir_types import F32, I64, KIND_BYTES, KIND_F32, POINTER, constant

if TYPE_CHECKING:
    from potluck.engine.kernels.emit import Emitter
    from potluck.engine.kernels.records import Record

Operand: TypeAlias = Any
"""A `Value`, llvmlite's own value, or a Python number."""

Item: TypeAlias = "int | ir.Type | type[Record]"
"""What a pointer points to: a kind of numbers (`KIND_…`), which are f32 once they are loaded; a type of
LLVM, whose values are loaded as they are; or a record."""


class Value:
    """A value of LLVM IR, with operators that emit instructions."""

    __slots__ = ("e", "raw")

    def __init__(self, e: "Emitter", raw: Operand) -> None:
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
        """Of integers, rounded towards zero."""
        return self.e.sdiv(*self._alike(self, other))

    def __mod__(self, other: Operand) -> "Value":
        """What `//` leaves, with the sign of the dividend."""
        return self.e.srem(*self._alike(self, other))

    def __and__(self, other: Operand) -> "Value":
        return self.e.and_(*self._alike(self, other))

    def __or__(self, other: Operand) -> "Value":
        return self.e.or_(*self._alike(self, other))

    def __lshift__(self, other: Operand) -> "Value":
        return self.e.shl(*self._alike(self, other))

    def __rshift__(self, other: Operand) -> "Value":
        """Zeros come in from above."""
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
        """The larger one; `other` where a float is NaN."""
        mine, its = self._alike(self, other)
        return self.e.select(mine > its, mine, its)

    def at_most(self, other: Operand) -> "Value":
        """The smaller one; `other` where a float is NaN."""
        mine, its = self._alike(self, other)
        return self.e.select(mine < its, mine, its)

    @property
    def _is_float(self) -> bool:
        return getattr(self.type, "element", self.type) == F32

    def _emit(self, operation: str, left: Operand, right: Operand) -> "Value":
        name = f"f{operation}" if self._is_float else operation
        return getattr(self.e, name)(*self._alike(left, right))

    def _compare(self, sign: str, other: Operand) -> "Value":
        compare = self.e.fcmp_ordered if self._is_float else self.e.icmp_signed
        return compare(sign, *self._alike(self, other))

    def _alike(self, left: Operand, right: Operand) -> "tuple[Value, Value]":
        """Both as values of one type."""
        if isinstance(left, (int, float)):
            left = constant(self.type, left)
        if isinstance(right, (int, float)):
            right = constant(self.type, right)
        if isinstance(left.type, ir.VectorType) and left.type.element == right.type:
            right = self.e.splat(right, left.type.count)
        elif isinstance(right.type, ir.VectorType) and right.type.element == left.type:
            left = self.e.splat(left, right.type.count)
        return self.e.value(left), self.e.value(right)


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring items as an index: a vector of them, of which those of the mask are there.

    Items outside the mask are loaded as zeros, and not stored; their memory is not touched.
    """

    first: Operand
    lanes: int
    mask: Value | None = None  # None: all


class Pointer(Value):
    """The address of items that follow one another in memory; they need not be aligned."""

    __slots__ = ("item",)

    def __init__(self, e: "Emitter", raw: Operand, item: Item) -> None:
        super().__init__(e, raw)
        self.item = item

    @property
    def is_null(self) -> Value:
        return self.e.icmp_unsigned("==", self.e.ptrtoint(self, I64), constant(I64, 0))

    @property
    def is_set(self) -> Value:
        return self.e.icmp_unsigned("!=", self.e.ptrtoint(self, I64), constant(I64, 0))

    def of(self, item: Item) -> "Pointer":
        """The same address, of other items."""
        return Pointer(self.e, self.raw, item)

    def skip(self, count: Operand, nbytes: Operand = 1) -> "Pointer":
        """So many times so many bytes further."""
        return Pointer(self.e, self.e.at(self, count, nbytes).raw, self.item)

    def __add__(self, count: Operand) -> "Pointer":
        """So many items further."""
        return self.skip(count, item_bytes(self.item))

    @overload
    def __getitem__(self, index: Span) -> Value: ...
    @overload
    def __getitem__(self, index: Operand) -> Any: ...
    def __getitem__(self, index: Operand) -> Any:
        """The item of this number, or a vector of them; a record with all its fields loaded."""
        e, item = self.e, self.item
        if isinstance(index, Span):
            here = self + index.first
            return e.fetch_numbers(here, _kind(item), index.lanes, index.mask)
        if isinstance(item, type):
            return item.load(self + index)
        if isinstance(item, int):
            assert item == KIND_F32, "a number alone is loaded of f32 only"
            item = F32
        return e.fetch(self + index, item)

    def __setitem__(self, index: Operand, value: Operand) -> None:
        here = self + (index.first if isinstance(index, Span) else index)
        if not isinstance(index, Span):
            self.e.put(value, here)
        elif isinstance(self.item, int):
            self.e.put_numbers(value, here, self.item, index.mask)
        elif index.mask is None:
            self.e.put(value, here)
        else:
            self.e.put_some(value, here, index.mask)


def _kind(item: Item) -> int:
    assert isinstance(item, int), "a vector is loaded of numbers only"
    return item


def item_bytes(item: Item) -> int:
    """How far one item is from the next."""
    if isinstance(item, int):
        return KIND_BYTES[item]
    if isinstance(item, type):
        return item.nbytes
    if isinstance(item, ir.VectorType):
        return item.count * item_bytes(item.element)
    if item == POINTER:
        return 8
    return 4 if isinstance(item, ir.FloatType) else cast("ir.IntType", item).width // 8
