"""Records: fields of 8 bytes one after the other, which Python writes and kernels read.

class Step(Record):
    hidden = Address(KIND_F32)
    position = Number()

step = Step.structure(hidden=address, position=3)      # in Python: a structure of ctypes
given = Step.load(pointer)                             # in a kernel: given.hidden[span]
"""

import ctypes
from typing import Any, ClassVar, Self, overload

from potluck.engine.kernels.ir_types import I64, POINTER
from potluck.engine.kernels.values import Item, Operand, Pointer, Value


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
    def in_order(cls, **values: Operand) -> list[Operand]:
        """Values of all fields, in the order in which they lie in memory."""
        assert values.keys() == cls.fields.keys(), values.keys() ^ cls.fields.keys()
        return [values[name] for name in cls.fields]
