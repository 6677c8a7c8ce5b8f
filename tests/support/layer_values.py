"""What the layers of all families are made of, and what of it a few families lack."""

import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache

from model_variants import VARIANTS
from tiny_models import config_of

from potluck.engine.generated.layers import is_generable
from potluck.model.layers import LayerSpec

Value = tuple[str, object]  # of a field, which has the names of those that it is in before its own


@cache
def variants_layers() -> Mapping[str, frozenset[LayerSpec]]:
    """The distinct layers of each variant."""
    return {variant: frozenset(config_of(variant).layers) for variant in VARIANTS}


def values_of(value: object, path: str = "", *, is_name: bool = False) -> Iterator[Value]:
    """The values of all fields within a value. Of sizes and other numbers, whether they are 0, 1 or more."""
    if is_dataclass(value):
        yield path, type(value).__name__
        for field, may_be_name in _fields(type(value)):
            yield from values_of(getattr(value, field), f"{path}.{field}", is_name=may_be_name)
    elif isinstance(value, tuple):
        yield path, min(len(value), 2)
        for part in typing.cast("tuple[object, ...]", value):
            yield from values_of(part, f"{path}[]", is_name=is_name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value if value in (0, 1) else "a number"
    elif isinstance(value, str):
        yield path, f"name {value}" if is_name else value
    else:
        yield path, repr(value)


@cache
def _fields(kind: type) -> tuple[tuple[str, bool], ...]:
    """The fields of a dataclass, and whether strings in them are names."""
    declared = typing.get_type_hints(kind)
    return tuple((one.name, not _has_literals(declared[one.name])) for one in fields(kind))


def _has_literals(declared: object) -> bool:
    """Whether a field's strings are some of a few, and not names."""
    parts = typing.get_args(declared)
    return typing.get_origin(declared) is typing.Literal or any(map(_has_literals, parts))


def kernel_values(layer: LayerSpec) -> Iterator[Value]:
    """What a kernel may be written for: names in files are nothing to kernels, nor is how a config was read."""
    for path, what in values_of(layer) if is_generable(layer) else ():
        if ".facts" not in path and not str(what).startswith("name "):
            yield path, what


def lacking(
    listed: Collection[str], values: Callable[[LayerSpec], Iterator[Value]]
) -> dict[Value, str]:
    """The values that no variant of a list has, and a variant that has them."""
    found = {
        variant: {value for layer in layers for value in values(layer)}
        for variant, layers in variants_layers().items()
    }
    held = set[Value]().union(*(found[variant] for variant in listed))
    return {value: variant for variant, some in found.items() for value in some - held}
