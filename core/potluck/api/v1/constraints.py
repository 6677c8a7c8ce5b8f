"""What the text of an answer has to be, from the fields in which clients say so.

OpenAI's `response_format`, vLLM's `structured_outputs` and the `guided_…` fields before it, and llama.cpp's
`grammar` and `json_schema`. Pure, like `request_shapes`.
"""

from collections.abc import Iterator

import msgspec

from potluck.api.prompts import Constraint
from potluck.api.v1.openai_checks import is_given
from potluck.api.v1.request_shapes import (
    ChatCompletionRequest,
    CompletionRequest,
    ResponseFormat,
    StructuredOutputs,
    UnsupportedParameterError,
)

_ANY_OBJECT = '{"type": "object"}'
MAX_CHOICES = 1024


def constraint_of(asked: ChatCompletionRequest | CompletionRequest) -> Constraint | None:
    """The constraint of a request; None: the answer may be anything.

    Raises:
        UnsupportedParameterError: it has more than one, or one of a kind that is not offered.
    """
    found = [*_openai(asked.response_format), *_vllm(asked), *_llama_cpp(asked)]
    if len(found) > 1:
        one, other = found[:2]
        raise UnsupportedParameterError(
            other.field,
            f"{other.field}: the answer has to follow {one.field} already; give one of them.",
        )
    return found[0] if found else None


def response_format(wanted: ResponseFormat, field: str) -> Constraint | None:
    """The constraint of OpenAI's way to say it; None: the answer is text.

    Args:
        wanted: what the answer has to be.
        field: in which the request says so.

    Raises:
        UnsupportedParameterError: it is of a kind that is not offered.
    """
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        has_schema = is_given(wanted.schema)
        return _schema(wanted.schema, field) if has_schema else _any_object(field)
    if wanted.type == "json_schema":
        described = wanted.json_schema
        if described is None:
            raise UnsupportedParameterError(field, f"{field}: type json_schema needs json_schema.")
        if not is_given(described.schema):
            return _any_object(field)
        return _schema(described.schema, field, is_strict=bool(described.strict))
    raise UnsupportedParameterError(
        field, f"{field}: the types text, json_object and json_schema are offered."
    )


def _openai(wanted: ResponseFormat | None) -> Iterator[Constraint]:
    found = None if wanted is None else response_format(wanted, "response_format")
    if found is not None:
        yield found


def _vllm(asked: ChatCompletionRequest | CompletionRequest) -> Iterator[Constraint]:
    guided = StructuredOutputs(
        json=asked.guided_json,
        regex=asked.guided_regex,
        choice=asked.guided_choice,
        grammar=asked.guided_grammar,
    )
    yield from _structured(guided, "guided_")
    if (wanted := asked.structured_outputs) is not None:
        if is_given(wanted.structural_tag):
            raise UnsupportedParameterError(
                "structured_outputs", "structured_outputs: structural_tag is not offered."
            )
        yield from _structured(wanted, "structured_outputs.")


def _structured(wanted: StructuredOutputs, prefix: str) -> Iterator[Constraint]:
    if is_given(wanted.json):
        yield _schema(wanted.json, f"{prefix}json")
    if wanted.json_object:
        yield _any_object(f"{prefix}json_object")
    if wanted.regex:
        yield Constraint(kind="regex", text=wanted.regex, field=f"{prefix}regex")
    if wanted.choice:
        text = msgspec.json.encode(wanted.choice).decode()
        yield Constraint(kind="choice", text=text, field=f"{prefix}choice")
    if wanted.grammar:
        yield Constraint(kind="lark", text=wanted.grammar, field=f"{prefix}grammar")


def _llama_cpp(asked: ChatCompletionRequest | CompletionRequest) -> Iterator[Constraint]:
    if asked.grammar:
        yield Constraint(kind="lark", text=asked.grammar, field="grammar")
    if is_given(asked.json_schema):
        yield _schema(asked.json_schema, "json_schema")


def _any_object(field: str = "response_format") -> Constraint:
    return Constraint(kind="json_schema", text=_ANY_OBJECT, field=field)


def _schema(raw: msgspec.Raw, field: str, *, is_strict: bool = True) -> Constraint:
    """A JSON schema, as an object or as its text."""
    text = bytes(raw).strip()
    if text.startswith(b'"'):
        text = msgspec.json.decode(text, type=str).encode()
    kind = "json_schema" if is_strict else "loose_json_schema"
    return Constraint(kind=kind, text=text.decode(), field=field)
