"""Give a conversation with tools to a template in the form that it reads.

Clients send calls as OpenAI's API has them: arguments as JSON text, content null, ids of any form. A
template that knows no tools gets all of that as ordinary messages.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import cast

from potluck.model.answers.format import ABSENT, AnswerFormat, History
from potluck.model.answers.writing import write_calls

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
CALL_ID_LENGTH = 9  # all that Mistral's templates accept; others accept any


def call_id(*parts: object) -> str:
    """An id for a call; the same for the same parts."""
    number = int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8])
    text = ""
    while len(text) < CALL_ID_LENGTH:
        number, digit = divmod(number, len(_DIGITS))
        text += _DIGITS[digit]
    return text


def for_template(
    form: AnswerFormat,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Mapping[str, object]] | None,
) -> tuple[list[dict[str, object]], list[Mapping[str, object]] | None]:
    """The messages and the tools as the template reads them.

    Args:
        form: of the model's answers.
        messages: as in OpenAI's API, each a JSON object; the reasoning is in `reasoning_content`.
        tools: the same; None: none are offered.
    """
    names = _names(messages)
    given = [_message(form, message, names) for message in messages]
    if not tools:
        return given, None
    if form.offers_tools:
        return given, list(tools)
    offer = _offer(form, tools)
    if given and given[0].get("role") == "system":
        first = {**given[0], "content": f"{given[0].get('content') or ''}\n\n{offer}".strip()}
        return [first, *given[1:]], None
    return [{"role": "system", "content": offer}, *given], None


def _names(messages: Sequence[Mapping[str, object]]) -> dict[object, object]:
    """The name of each call, by its id."""
    return {
        call.get("id"): _function(call).get("name") for each in messages for call in _calls(each)
    }


def _calls(message: Mapping[str, object]) -> list[Mapping[str, object]]:
    return cast("list[Mapping[str, object]]", message.get("tool_calls") or [])


def _function(call: Mapping[str, object]) -> Mapping[str, object]:
    return cast("Mapping[str, object]", call.get("function") or {})


def _message(
    form: AnswerFormat, message: Mapping[str, object], names: Mapping[object, object]
) -> dict[str, object]:
    found = dict(message)
    field = form.reasoning.field if form.reasoning else None
    thought = found.pop("reasoning_content", None)
    if thought and field:
        found[field] = thought
    if found.get("role") == "tool":
        return _result(form, found, names)
    calls = [_call(form, call) for call in _calls(found)]
    if not calls:
        found.pop("tool_calls", None)
        return found
    if not form.shows_calls:
        del found["tool_calls"]
        written = write_calls(form.calls, [_named(call) for call in calls])
        found["content"] = f"{found.get('content') or ''}\n{written}".strip()
        return found
    found["tool_calls"] = calls
    content = found.get("content")
    if form.history.has_one_text and field and found.get(field) and isinstance(content, str):
        found[field] = f"{found[field]}\n\n{content}".strip()
        del found["content"]
    if not found.get("content"):
        found.pop("content", None)
        if form.history.content != ABSENT:
            found["content"] = form.history.content
    return found


def _named(call: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    function = _function(call)
    arguments = function.get("arguments")
    is_object = isinstance(arguments, dict)
    return str(function.get("name")), cast(
        "Mapping[str, object]", arguments if is_object else {"arguments": arguments}
    )


def _call(form: AnswerFormat, call: Mapping[str, object]) -> dict[str, object]:
    function = dict(_function(call))
    arguments = function.get("arguments")
    if isinstance(arguments, str) and not form.history.arguments_as_text:
        function["arguments"] = _object_of(arguments)
    return {"type": "function", "id": _id(form.history, call.get("id")), "function": function}


def _object_of(text: str) -> object:
    """The object of a JSON text; the text itself if it has none."""
    try:
        found: object = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return cast("dict[str, object]", found) if isinstance(found, dict) else text


def _id(history: History, given: object) -> str:
    text = str(given or "")
    return text if len(text) == (history.id_length or len(text)) else call_id(text)


def _result(
    form: AnswerFormat, message: dict[str, object], names: Mapping[object, object]
) -> dict[str, object]:
    """The result of a call."""
    name = message.get("name") or names.get(message.get("tool_call_id"))
    if form.shows_calls:
        found = {**message, "tool_call_id": _id(form.history, message.get("tool_call_id"))}
        return {**found, "name": name} if name else found
    of = f" of {name}" if name else ""
    return {
        "role": "user",
        "content": f"<tool_response>\nThe result{of}:\n{message.get('content') or ''}\n</tool_response>",
    }


def _offer(form: AnswerFormat, tools: Sequence[Mapping[str, object]]) -> str:
    """What a model is told whose template tells it nothing of tools."""
    functions = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    example = write_calls(form.calls, [("NAME", {"ARGUMENT": "VALUE"})])
    return (
        "You can call these tools, each described by a JSON object with the schema of its arguments:\n"
        f"{functions}\n\n"
        "To call a tool, write nothing but this, with its name and its arguments:\n"
        f"{example}\n"
        "The result follows in the next message. If no tool is needed, answer as usual."
    )
