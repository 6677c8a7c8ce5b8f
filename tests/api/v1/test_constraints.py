"""What clients send to have an answer follow a schema, as one constraint."""

import json
from typing import Any

import msgspec
import pytest

from potluck.api.prompts import Constraint
from potluck.api.v1.constraints import constraint_of
from potluck.api.v1.request_shapes import CompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = json.dumps(SCHEMA)


def of(**fields: Any) -> Constraint | None:
    body = json.dumps({"prompt": "x", **fields})
    return constraint_of(msgspec.json.decode(body, type=CompletionRequest))


def openai_format(**described: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", **described}}


@pytest.mark.parametrize(
    ("fields", "kind", "text", "field"),
    [
        (
            {"response_format": openai_format(schema=SCHEMA, strict=True)},
            "json_schema",
            TEXT,
            "response_format",
        ),
        (
            {"response_format": openai_format(schema=SCHEMA)},
            "loose_json_schema",
            TEXT,
            "response_format",
        ),
        (
            {"response_format": {"type": "json_object"}},
            "json_schema",
            '{"type": "object"}',
            "response_format",
        ),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "json_schema",
            TEXT,
            "response_format",
        ),
        ({"guided_json": SCHEMA}, "json_schema", TEXT, "guided_json"),
        ({"guided_json": TEXT}, "json_schema", TEXT, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]', "guided_choice"),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"', "guided_grammar"),
        ({"grammar": 'root ::= "a"'}, "lark", 'root ::= "a"', "grammar"),
        ({"json_schema": SCHEMA}, "json_schema", TEXT, "json_schema"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a"}}, "regex", "a", "structured_outputs.regex"),
        (
            {"structured_outputs": {"choice": ["é"]}},
            "choice",
            '["é"]',
            "structured_outputs.choice",
        ),
    ],
)
def test_each_field_becomes_a_constraint(fields: Any, kind: Any, text: str, field: str) -> None:
    assert of(**fields) == Constraint(kind=kind, text=text, field=field)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}, "guided_json": None, "grammar": ""},
        {"structured_outputs": {}, "guided_choice": [], "json_schema": {}},
    ],
)
def test_fields_that_ask_for_nothing_are_none(fields: Any) -> None:
    assert of(**fields) is None
