"""What kernels find in memory: typed pointers, which are indexed as arrays, and records.

    out[span] = x[span] * scale + y[span]          # vectors, of whatever kind of numbers lies in memory
    total = total + keys[slot * width + lane]      # one number

The fields of a record take 8 bytes each, one after the other; Python writes them and kernels read them:

    class Step(Record):
        hidden = Address(KIND_F32)
        position = Number()

    step = Step.structure(hidden=address, position=3)      # in Python: a structure of ctypes
    given = Step.load(pointer)                             # in a kernel: given.hidden[span]
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias, cast, overload

from llvmlite import ir

from potluck.engine.kernels.writing.ir_types import (
    F32,
    I8,
    I32,
    I64,
    KIND_BYTES,
    KIND_F32,
    POINTER,
    VOID,
    Operand,
    constant,
    vector,
)
from potluck.engine.kernels.writing.kinds import STORED, from_f32, to_f32
from potluck.engine.kernels.writing.values import Builder, Value

Item: TypeAlias = "int | ir.Type | type[Record]"
"""What a pointer points to: a kind of numbers (`KIND_…`), which are f32 once they are loaded; a type of
LLVM, whose values are loaded as they are; or a record."""


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

    def __init__(self, e: Builder, raw: Operand, item: Item) -> None:
        super().__init__(e, raw)
        self.item = item

    @property
    def is_null(self) -> Value:
        return self.e.ptrtoint(self, I64).equals(0)

    @property
    def is_set(self) -> Value:
        return self.e.ptrtoint(self, I64).differs(0)

    def of(self, item: Item) -> "Pointer":
        """Return the same address, as one of other items."""
        return Pointer(self.e, self.raw, item)

    def skip(self, count: Operand, nbytes: Operand = 1) -> "Pointer":
        """Return the address `count` times `nbytes` bytes further."""
        e = self.e
        offset = e.index(count)
        if nbytes != 1:
            offset = offset * e.index(nbytes)
        return Pointer(e, e.gep(self, [offset], source_etype=I8).raw, self.item)

    def __add__(self, count: Operand) -> "Pointer":
        """Return the address `count` items further."""
        return self.skip(count, item_bytes(self.item))

    @overload
    def __getitem__(self, index: Span) -> Value: ...
    @overload
    def __getitem__(self, index: Operand) -> Any: ...
    def __getitem__(self, index: Operand) -> Any:
        """Load the item of this number, or a vector of items; of a record, all fields."""
        item = self.item
        if isinstance(index, Span):
            stored = (self + index.first)._load_span(index)
            return to_f32(stored, item) if isinstance(item, int) else stored
        if isinstance(item, type):
            return item.load(self + index)
        if isinstance(item, int):
            assert item == KIND_F32, "a number alone is loaded of f32 only"
            item = F32
        return self.e.load(self + index, typ=item, align=1)

    def __setitem__(self, index: Operand, value: Operand) -> None:
        if not isinstance(index, Span):
            self.e.store(value, self + index, align=1)
            return
        here = self + index.first
        stored = from_f32(value, self.item) if isinstance(self.item, int) else value
        if index.mask is None:
            self.e.store(stored, here, align=1)
            return
        name = f"llvm.masked.store.{_suffix(stored.type)}.p0"
        self.e.intrinsic(name, VOID, [stored, here, constant(I32, 1), index.mask])

    def prefetch(self) -> None:
        """Tell the processor that this cache line is read soon.

        It comes into the second cache: of the first one, processors wait for few lines at once (16 of an Intel
        Xeon), and what is read some thousand bytes later would push out what is read now.
        """
        read, second_cache, data = (constant(I32, value) for value in (0, 2, 1))
        self.e.intrinsic("llvm.prefetch.p0", VOID, [self, read, second_cache, data])

    def _load_span(self, span: Span) -> Value:
        item = self.item
        assert not isinstance(item, type), "a vector is loaded of numbers only"
        typ = vector(STORED[item] if isinstance(item, int) else item, span.lanes)
        if span.mask is None:
            return self.e.load(self, typ=typ, align=1)
        # The alignment became an attribute in LLVM 22, which still reads the older form.
        arguments = [self, constant(I32, 1), span.mask, constant(typ, 0)]
        return self.e.intrinsic(f"llvm.masked.load.{_suffix(typ)}.p0", typ, arguments)


def _suffix(typ: Any) -> str:
    """Return how the name of an intrinsic says a vector's type."""
    return f"v{typ.count}{typ.element.intrinsic_name}"


def item_bytes(item: Item) -> int:
    """Return how many bytes one item is from the next."""
    if isinstance(item, int):
        return KIND_BYTES[item]
    if isinstance(item, type):
        return item.nbytes
    if isinstance(item, ir.VectorType):
        return item.count * item_bytes(item.element)
    if item == POINTER:
        return 8
    return 4 if isinstance(item, ir.FloatType) else cast("ir.IntType", item).width // 8


def stack(e: Builder, typ: ir.Type, count: int) -> Pointer:
    """Return stack memory for `count` items, aligned to a vector register."""
    with e.goto_entry_block():
        room = e.alloca(typ, size=constant(I64, count))
    # What the system aligns the stack to is enough on aarch64. A larger alignment needs a frame pointer,
    # for which LLVM cannot write the prologue on Windows.
    room.raw.align = 64 if e.path.architecture == "x86_64" else 16
    room.raw.type = POINTER  # llvmlite insists on the type that was asked for
    return Pointer(e, room.raw, typ)


def table(e: Builder, name: str, numbers: Sequence[float]) -> Pointer:
    """Return the address of a constant array of f32."""
    typ = ir.ArrayType(F32, len(numbers))
    made: Any = ir.GlobalVariable(e.module, typ, e.module.get_unique_name(name))
    made.initializer = ir.Constant(typ, list(numbers))
    made.global_constant, made.linkage = True, "internal"
    return Pointer(e, made, KIND_F32)


class Number:
    """A field that is an i64."""

    def __set_name__(self, owner: "type[Record]", name: str) -> None:
        self._name = name

    @overload
    def __get__(self, record: None, owner: "type[Record]") -> Self: ...
    @overload
    def __get__(self, record: "Record", owner: "type[Record]") -> Value: ...
    def __get__(self, record: "Record | None", owner: "type[Record]") -> "Self | Value":
        return self if record is None else record[self._name]

    def load(self, place: Pointer) -> Value:
        return place.of(I64)[0]


class Address(Number):
    """A field that is a pointer to items, or null."""

    def __init__(self, item: Item) -> None:
        self._item = item

    @overload
    def __get__(self, record: None, owner: "type[Record]") -> Self: ...
    @overload
    def __get__(self, record: "Record", owner: "type[Record]") -> Pointer: ...
    def __get__(self, record: "Record | None", owner: "type[Record]") -> "Self | Value":
        return super().__get__(record, owner) if record is not None else self

    def load(self, place: Pointer) -> Pointer:
        return Pointer(place.e, place.of(POINTER)[0], self._item)


class Function(Number):
    """A field that is the address of a function, or null."""

    def __init__(self, kind: ir.FunctionType) -> None:
        self._kind = kind

    def load(self, place: Pointer) -> Value:
        return place.of(self._kind.as_pointer())[0]


class Record:
    """The fields of a record as a kernel has loaded them; subclasses say which there are."""

    fields: ClassVar[dict[str, Number]]
    structure: ClassVar[Any]  # of ctypes; a field that is not given is 0
    nbytes: ClassVar[int]

    def __init_subclass__(cls) -> None:
        cls.fields = {name: one for name, one in vars(cls).items() if isinstance(one, Number)}
        # Without slots, a name that is no field would be taken silently.
        members = {"_fields_": [(name, ctypes.c_int64) for name in cls.fields], "__slots__": ()}
        cls.structure = type(cls.__name__, (ctypes.Structure,), members)
        cls.nbytes = ctypes.sizeof(cls.structure)

    def __init__(self, values: dict[str, Value]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        """A field by its name."""
        return self._values[name]

    @classmethod
    def load(cls, pointer: Pointer) -> Self:
        """Load all fields, before anything is stored that might be one of them."""
        places = {name: pointer.of(I64) + index for index, name in enumerate(cls.fields)}
        return cls({name: field.load(places[name]) for name, field in cls.fields.items()})

    @classmethod
    def store(cls, e: Builder, **values: Operand) -> Pointer:
        """Store a record on the stack, as the arguments of another kernel; all its fields are given."""
        assert values.keys() == cls.fields.keys(), values.keys() ^ cls.fields.keys()
        memory = stack(e, I64, len(cls.fields))
        for index, name in enumerate(cls.fields):
            memory[index] = e.index(values[name])
        return memory.of(cls)
