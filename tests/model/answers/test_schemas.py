"""Objects have the properties that a schema names, unless it says otherwise."""

from collections.abc import Mapping
from typing import Any

import pytest

from potluck.model.answers.schemas import closed

A: Mapping[str, Any] = {"a": {"type": "string"}}
OBJECT: Mapping[str, Any] = {"type": "object", "properties": A}
CLOSED = {**OBJECT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (OBJECT, CLOSED),
        ({"properties": {"list": {"items": OBJECT}}}, {"list": {"items": CLOSED}}),
        ({"properties": {"one": {"anyOf": [OBJECT, True]}}}, {"one": {"anyOf": [CLOSED, True]}}),
    ],
    ids=str,
)
def test_objects_are_closed_wherever_they_are(
    schema: Mapping[str, Any], wanted: Mapping[str, Any]
) -> None:
    if schema is not OBJECT:
        wanted = {"properties": wanted, "additionalProperties": False}
    assert closed(schema) == wanted
    assert "additionalProperties" not in schema  # the schema of the client is another


def test_definitions_are_closed_where_they_are_used_as_a_whole() -> None:
    used = {"$defs": {"o": OBJECT}, "properties": {"b": {"$ref": "#/$defs/o"}}}
    assert closed(used) == {**used, "$defs": {"o": CLOSED}, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**OBJECT, "additionalProperties": True},
        {**OBJECT, "additionalProperties": {"type": "integer"}},
        {**OBJECT, "patternProperties": {"^x-": {}}},
        {**OBJECT, "unevaluatedProperties": True},
        {**OBJECT, "anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]},
        {"allOf": [OBJECT, {"properties": {"b": {}}}]},
        {"$defs": {"o": OBJECT}, "$ref": "#/$defs/o", "properties": {"b": {}}},
        {"not": OBJECT},
        {"enum": [{"properties": {}}]},
        {"items": 1, "anyOf": 2, "$defs": []},
    ],
    ids=str,
)
def test_what_says_otherwise_or_is_put_together_stays_as_it_is(schema: Mapping[str, Any]) -> None:
    assert closed(schema) == schema


def test_a_schema_of_any_depth_is_returned() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"items": deep}
    assert closed(deep) is deep
