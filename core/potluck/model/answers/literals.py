"""Values that models write in place of JSON: Python's literals, and Gemma's."""

import ast
import json
from collections.abc import Iterator
from typing import cast

from potluck.model.answers.format import GEMMA_QUOTE
from potluck.model.answers.reader import UnreadableError

_MAX_TEXT = 1 << 20  # characters; Python's parser takes some 100 bytes for each
_PYTHON_NAMES = {"true": True, "false": False, "null": None}


def json_literal(text: str) -> object:
    """The value of a text: JSON, else a literal of Python, else the text itself."""
    stripped = text.strip()
    try:
        return cast("object", json.loads(stripped, strict=False))
    except (ValueError, RecursionError):
        pass
    if len(stripped) > _MAX_TEXT or not stripped or stripped[0] not in "[{(TFN'":
        return text
    try:
        value = _value(ast.parse(stripped, mode="eval").body)
        json.dumps(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value


def python_calls(text: str) -> list[tuple[str, dict[str, object]]]:
    """The calls of a text such as `[add(a=1), now()]`.

    Raises:
        UnreadableError: it has anything but calls with literals as arguments.
    """
    if len(text) > _MAX_TEXT:
        raise UnreadableError
    try:
        body = ast.parse(text.strip(), mode="eval").body
        calls = list(_calls(body.elts if isinstance(body, ast.List | ast.Tuple) else [body]))
        json.dumps(calls)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UnreadableError from None
    return calls


def _calls(found: list[ast.expr]) -> Iterator[tuple[str, dict[str, object]]]:
    for call in found:
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        arguments = {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}
        yield ast.unparse(call.func), arguments


def _value(node: ast.expr) -> object:
    match node:
        case ast.Name(id=name) if name in _PYTHON_NAMES:
            return _PYTHON_NAMES[name]
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            return [_value(each) for each in elts]
        case ast.Dict(keys=keys, values=values):
            named = zip(keys, values, strict=True)
            return {str(_value(key)): _value(value) for key, value in named if key is not None}
        case _:
            return ast.literal_eval(node)


def gemma_arguments(text: str) -> object:
    """The value of a text such as `{a:1,b:[<|"|>text<|"|>]}`.

    Raises:
        UnreadableError: it is no such value.
    """
    try:
        value, end = _gemma_value(text, 0)
    except (IndexError, RecursionError):
        raise UnreadableError from None
    if text[end:].strip():
        raise UnreadableError
    return value


def _gemma_value(text: str, at: int) -> tuple[object, int]:
    if text.startswith(GEMMA_QUOTE, at):
        at += len(GEMMA_QUOTE)
        end = text.find(GEMMA_QUOTE, at)
        if end < 0:
            raise UnreadableError
        return text[at:end], end + len(GEMMA_QUOTE)
    if text[at] == "[":
        items: list[object] = []
        at += 1
        while text[at] != "]":
            item, at = _gemma_value(text, at)
            items.append(item)
            at += text[at] == ","
        return items, at + 1
    if text[at] == "{":
        found: dict[str, object] = {}
        at += 1
        while text[at] != "}":
            colon = text.find(":", at)
            if colon < 0:
                raise UnreadableError
            found[text[at:colon].strip().replace(GEMMA_QUOTE, "")], at = _gemma_value(
                text, colon + 1
            )
            at += text[at] == ","
        return found, at + 1
    end = min(place for char in ",]}" if (place := text.find(char, at)) >= 0)
    return json_literal(text[at:end]), end
