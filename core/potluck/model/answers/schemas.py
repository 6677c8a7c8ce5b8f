"""JSON schemas as clients mean them: an object has the properties that are named, and no others."""

from collections.abc import Iterator, Mapping
from typing import cast

# What says itself which other properties there may be, or adds some.
_SAID = {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
_ADDED = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
_OF_NAMES = ("properties", "$defs", "definitions")
_OF_LISTS = ("anyOf", "oneOf", "prefixItems")

_Schema = dict[str, object]


def closed(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return a schema whose objects may have no other properties than those it names.

    By the standard, `properties` alone lets any others in, and a small model then invents some. Who gives
    such a schema does not mean that. A schema whose objects are put together of several parts stays as it
    is, since a part that is closed would refuse the properties of the others.
    """
    try:
        copy = cast("_Schema", _copied(schema))
    except RecursionError:  # whoever compiles it refuses such a depth
        return schema
    found = [node for node in _nodes(copy) if "properties" in node]
    if any(_ADDED & node.keys() for node in found) or any("allOf" in node for node in _nodes(copy)):
        return schema
    for node in found:
        if not _SAID & node.keys():
            node["additionalProperties"] = False
    return copy


def _copied(value: object) -> object:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {key: _copied(each) for key, each in items}
    if isinstance(value, list):
        return [_copied(each) for each in cast("list[object]", value)]
    return value


def _nodes(schema: _Schema) -> Iterator[_Schema]:
    """A schema and those inside it, without those of `not` and the like, which mean the opposite."""
    todo: list[object] = [schema]
    while todo:
        node = todo.pop()
        if not isinstance(node, dict):
            continue
        node = cast("_Schema", node)
        yield node
        for key in _OF_NAMES:
            named = node.get(key)
            todo += cast("_Schema", named).values() if isinstance(named, dict) else ()
        for key in _OF_LISTS:
            listed = node.get(key)
            todo += cast("list[object]", listed) if isinstance(listed, list) else ()
        todo.append(node.get("items"))
