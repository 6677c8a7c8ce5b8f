"""Find the format of a model's answers by rendering known values through its chat template.

What the template writes around these values is the format.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from potluck.errors import PromptError
from potluck.model.answers.call_layout import (
    CONTENT,
    IDS,
    NAME,
    NUMBER,
    NUMBER_KEY,
    OTHER_WORD,
    TEXT_KEY,
    WORD,
    derive_calls,
)
from potluck.model.answers.format import (
    ABSENT,
    ANY,
    PLAIN_CALLS,
    AnswerFormat,
    CallFormat,
    History,
    Reasoning,
)
from potluck.model.answers.tags import common_prefix, outside_tag, to_tag
from potluck.model.answers.writing import WRITABLE

Message: TypeAlias = Mapping[str, object]
Render: TypeAlias = Callable[[Sequence[Message], Sequence[Message] | None, bool], str]
"""Renders messages with tools; the last argument says whether an answer is to begin."""

_THOUGHT = "probe of reasoning"
_USER: Message = {"role": "user", "content": "probe of a question"}
_TOOLS: Sequence[Message] = (
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {
                    TEXT_KEY: {"type": "string", "description": "A word."},
                    NUMBER_KEY: {"type": "integer", "description": "A number."},
                },
                "required": [TEXT_KEY],
            },
        },
    },
)
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Of templates that drop the reasoning of earlier turns, and so do not show how it is written.
_KNOWN_REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)
_HARMONY_REASONING = Reasoning(
    opens="<|channel|>analysis<|message|>", closes="<|end|>", field="thinking"
)
_TAG = re.compile(r"<[^<>]+>|\[[A-Z_ ]+\]")
_LAST_TAG = re.compile(r"(<[^<>]+>|\[[A-Z_ ]+\])\s*$")
_FIRST_TAG = re.compile(r"\s*(<[^<>]+>|\[[A-Z_ ]+\])")
_THINKS = re.compile("think|thought|reason", re.IGNORECASE)
# Of templates that offer tools and leave out earlier calls: what they say, and the format that they mean.
_PYTHON_CALLS = CallFormat(
    kind="python",
    section_opens="<|tool_call_start|>",
    section_closes="<|tool_call_end|>",
    is_list=True,
)
_KIMI_CALLS = CallFormat(
    kind="named",
    section_opens="<|tool_calls_section_begin|>",
    section_closes="<|tool_calls_section_end|>",
    opens="<|tool_call_begin|>functions.",
    closes="<|tool_call_end|>",
    after_name=f":{ANY}<|tool_call_argument_begin|>",
)
_KNOWN_CALLS = (
    ("<|tool_calls_section_begin|>", _KIMI_CALLS),
    ("<|tool_call_start|>", _PYTHON_CALLS),
    ("<|tool_list_start|>", _PYTHON_CALLS),
    ("List of tools: [", _PYTHON_CALLS),
    ("<tool_call>", PLAIN_CALLS),
    ("<|tool_call|>", CallFormat(kind="json", section_opens="<|tool_call|>", is_list=True)),
)


def derive_format(render: Render, source: str) -> AnswerFormat:
    """The format of a template's answers.

    Args:
        render: renders a conversation; raises PromptError if the template refuses it.
        source: of the template.
    """
    reasoning = _reasoning(render, source)
    history, one, two = _history(render)
    begun = _attempt(render, [_USER], generate=True) or ""
    offers_tools = NAME in begun
    if "<|channel|>" in source and "<|message|>" in source:
        return AnswerFormat(
            calls=CallFormat(kind="harmony", section_opens="<|channel|>"),
            offers_tools=offers_tools,
            shows_calls=one is not None,
            history=history,
            reasoning=_HARMONY_REASONING,
        )
    content = _attempt(render, [_USER, {"role": "assistant", "content": CONTENT}]) or ""
    calls = None if one is None else derive_calls(one, two, (begun, content))
    if calls is not None and not offers_tools and calls.kind not in WRITABLE:
        calls = None
    shows_calls = calls is not None
    if calls is None and offers_tools:
        told = begun + source
        calls = next((form for words, form in _KNOWN_CALLS if words in told), None)
    opens = _before_content(begun, content, reasoning)
    return AnswerFormat(
        calls=calls or PLAIN_CALLS,
        offers_tools=offers_tools,
        shows_calls=shows_calls,
        history=history,
        reasoning=reasoning,
        content_opens=opens,
        content_closes=_after_content(render, history, content) if opens else "",
    )


def _attempt(render: Render, messages: Sequence[Message], *, generate: bool = False) -> str | None:
    """The text of a conversation with tools; None: the template refuses it."""
    try:
        return render(messages, _TOOLS, generate)
    except PromptError:
        return None


# --- calls


def _history(render: Render) -> tuple[History, str | None, str | None]:
    """How the template wants calls, and what it makes of one, and of two; None: of none."""
    for history in _histories():
        one = _attempt(render, [_USER, _message(history, 1)])
        if one is not None and _answer_has_call(render, one):
            two = _attempt(render, [_USER, _message(history, 2)])
            length = len(IDS[0]) if _needs_short_ids(render, history) else 0
            found = replace(history, id_length=length, has_one_text=_has_one_text(render, history))
            return found, one, two
    return History(), None, None


def _histories() -> Iterator[History]:
    for as_text in (False, True):
        for content in ("", None, ABSENT):
            yield History(content=content, arguments_as_text=as_text)


def _answer_has_call(render: Render, text: str) -> bool:
    question = _attempt(render, [_USER]) or ""
    return WORD in text[len(common_prefix(question, text)) :]


def _needs_short_ids(render: Render, history: History) -> bool:
    long_ids = tuple(f"call_{each}_{each}" for each in IDS)
    return _attempt(render, [_USER, _message(history, 1, long_ids)]) is None


def _has_one_text(render: Render, history: History) -> bool:
    """Whether the template refuses a text and reasoning beside a call, though it takes either."""
    message = _message(history, 1)
    for field in _REASONING_FIELDS:
        texts: list[Message] = [{"content": CONTENT}, {field: _THOUGHT}]
        both = {**message, "content": CONTENT, field: _THOUGHT}
        takes_each = all(_attempt(render, [_USER, {**message, **one}]) for one in texts)
        if takes_each and _attempt(render, [_USER, both]) is None:
            return True
    return False


def _message(history: History, count: int, ids: Sequence[str] = IDS) -> Message:
    """A message with so many calls."""
    arguments: list[dict[str, object]] = [
        {TEXT_KEY: WORD, NUMBER_KEY: NUMBER},
        {TEXT_KEY: OTHER_WORD, NUMBER_KEY: NUMBER},
    ]
    calls = [
        {
            "id": ids[i],
            "type": "function",
            "function": {
                "name": NAME,
                "arguments": json.dumps(arguments[i])
                if history.arguments_as_text
                else arguments[i],
            },
        }
        for i in range(count)
    ]
    message: dict[str, object] = {"role": "assistant", "tool_calls": calls}
    if history.content != ABSENT:
        message["content"] = history.content
    return message


# --- reasoning, and the answer proper


def _reasoning(render: Render, source: str) -> Reasoning | None:
    for field in _REASONING_FIELDS:
        message = {"role": "assistant", "content": CONTENT, field: _THOUGHT}
        text = _attempt(render, [_USER, message]) or ""
        before, found, after = text.partition(_THOUGHT)
        if not found:
            continue
        for opens, closes in _KNOWN_REASONING:
            if before.rstrip().endswith(opens) and after.lstrip().startswith(closes):
                return Reasoning(opens=opens, closes=closes, field=field)
        opens, closes = _LAST_TAG.search(before), _FIRST_TAG.match(after)
        if opens and closes and _THINKS.search(opens[1]):
            return Reasoning(opens=opens[1], closes=closes[1], field=field)
        return None
    known = (Reasoning(opens=opens, closes=closes) for opens, closes in _KNOWN_REASONING)
    return next((each for each in known if each.closes in source), None)


def _before_content(begun: str, content: str, reasoning: Reasoning | None) -> str:
    """The tag before the answer proper, if there is one."""
    before = content.partition(CONTENT)[0]
    before = before[outside_tag(before, len(common_prefix(before, begun))) :]
    if reasoning is not None:
        before = before.rpartition(reasoning.closes)[2]
    return before.strip() if _TAG.search(before) else ""


def _after_content(render: Render, history: History, content: str) -> str:
    """The tag after the answer proper: it comes before calls as well."""
    both = _attempt(render, [_USER, {**_message(history, 1), "content": CONTENT}]) or ""
    after = both.partition(CONTENT)[2]
    return to_tag(common_prefix(content.partition(CONTENT)[2], after)).strip()
