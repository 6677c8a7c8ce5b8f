"""Messages that fit their types and mean nothing, as somebody with a modified Potluck may send."""

import enum
import re
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from potluck.wire.messages import Message

HEX = ("0123456789abcdef" * 4, "0" * 64)
EDGES = (0, 1, 2, 63, 64, 255, 4096, 65_535, (1 << 31) - 1, 1 << 40, 1 << 62)
WORDS = ("", "a", "Laptop", "127.0.0.1", "cpu", "x" * 64, "../..", "F32", "é")


def random_message(kind: type[Message], random: Random) -> Message:
    """A message of this type, without `id` and `re`. Its fields have odd values that their types allow."""
    built = _value(inspect.type_info(kind), random)
    return msgspec.convert({**built, "id": None, "re": None}, kind)


def _value(kind: inspect.Type, random: Random) -> Any:
    match kind:
        case inspect.Metadata():
            return _value(kind.type, random)
        case inspect.StructType():
            fields: dict[str, Any] = {
                field.encode_name: _value(field.type, random)
                for field in kind.fields
                if field.required or random.random() < 0.5
            }
            return fields if kind.tag_field is None else fields | {kind.tag_field: kind.tag}
        case inspect.UnionType():
            return _value(random.choice(kind.types), random)
        case inspect.LiteralType():
            return random.choice(kind.values)
        case inspect.EnumType():
            value: Any = random.choice(list[enum.Enum](kind.cls)).value
            return value
        case inspect.IntType():
            least, most = kind.ge or 0, EDGES[-1] if kind.le is None else kind.le
            if kind.lt is not None:
                most = kind.lt - 1
            return random.choice([edge for edge in (*EDGES, least, most) if least <= edge <= most])
        case inspect.FloatType():
            least = 1e-300 if kind.ge is None else kind.ge
            return random.choice([least, 1.0, 0.5, 1e300 if kind.le is None else kind.le])
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.StrType():
            fitting = [
                word
                for word in (*HEX, *WORDS)
                if (kind.min_length or 0) <= len(word) <= (kind.max_length or 64)
                and (kind.pattern is None or re.search(kind.pattern, word))
            ]
            return random.choice(fitting)
        case inspect.BytesType():
            least = kind.min_length or 0
            return random.randbytes(min(random.choice((least, least + 16)), kind.max_length or 160))
        case inspect.NoneType():
            return None
        case inspect.TupleType():
            return [_value(item, random) for item in kind.item_types]
        case inspect.VarTupleType() | inspect.ListType():
            least = kind.min_length or 0
            count = random.choice((least, least + 1, least + 3))
            return [_value(kind.item_type, random) for _ in range(count)]
        case inspect.DictType():
            return {
                random.choice(WORDS): _value(kind.value_type, random)
                for _ in range(random.choice((0, 1, 3)))
            }
        case inspect.AnyType() | inspect.CustomType():
            return random.choice((None, 0, -1, 1e300, "x", [], {}, [[]], {"a": {}}))
        case _:
            raise TypeError(f"no values of {kind} are known")
