"""Find the format of a model's answers by rendering known values through its chat template.

What the template writes around these values is the format. The text before a call, between two calls,
and after them has the parts that belong to each call, and those that belong to all.
"""

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from msgspec.structs import replace

from potluck.errors import PromptError
from potluck.model.answers.format import (
    ABSENT,
    ANY,
    KEY,
    PLAIN_CALLS,
    AnswerFormat,
    CallFormat,
    History,
    Reasoning,
)
from potluck.model.answers.writing import WRITABLE

Message: TypeAlias = Mapping[str, object]
Render: TypeAlias = Callable[[Sequence[Message], Sequence[Message] | None, bool], str]
"""Renders messages with tools; the last argument says whether an answer is to begin."""

_NAME, _TEXT_KEY, _NUMBER_KEY = "probe_function", "probe_word", "probe_count"
_WORD, _OTHER_WORD, _NUMBER = "probe value", "other value", 41
_IDS = ("probecal1", "probecal2")  # as long as Mistral's have to be
_CONTENT, _THOUGHT = "probe of content", "probe of reasoning"
_USER: Message = {"role": "user", "content": "probe of a question"}
_TOOLS: Sequence[Message] = (
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {
                    _TEXT_KEY: {"type": "string", "description": "A word."},
                    _NUMBER_KEY: {"type": "integer", "description": "A number."},
                },
                "required": [_TEXT_KEY],
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
_WORD_CHARS = string.ascii_letters + string.digits
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
_KNOWN_CALLS = (
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
    if "<|channel|>" in source and "<|message|>" in source:
        calls = CallFormat(kind="harmony", section_opens="<|channel|>")
        return AnswerFormat(calls=calls, history=history, reasoning=reasoning)
    begun = _attempt(render, [_USER], generate=True) or ""
    content = _attempt(render, [_USER, {"role": "assistant", "content": _CONTENT}]) or ""
    offers_tools = _NAME in begun
    calls = None if one is None else derive_calls(one, two, (begun, content))
    if calls is not None and not offers_tools and calls.kind not in WRITABLE:
        calls = None
    shows_calls = calls is not None
    if calls is None and offers_tools:
        calls = next((form for told, form in _KNOWN_CALLS if told in begun), None)
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
            length = len(_IDS[0]) if _needs_short_ids(render, history) else 0
            return replace(history, id_length=length), one, two
    return History(), None, None


def _histories() -> Iterator[History]:
    for as_text in (False, True):
        for content in ("", None, ABSENT):
            yield History(content=content, arguments_as_text=as_text)


def _answer_has_call(render: Render, text: str) -> bool:
    question = _attempt(render, [_USER]) or ""
    return _WORD in text[len(_common_prefix(question, text)) :]


def _needs_short_ids(render: Render, history: History) -> bool:
    long_ids = tuple(f"call_{each}_{each}" for each in _IDS)
    return _attempt(render, [_USER, _message(history, 1, long_ids)]) is None


def _message(history: History, count: int, ids: Sequence[str] = _IDS) -> Message:
    """A message with so many calls."""
    arguments: list[dict[str, object]] = [
        {_TEXT_KEY: _WORD, _NUMBER_KEY: _NUMBER},
        {_TEXT_KEY: _OTHER_WORD, _NUMBER_KEY: _NUMBER},
    ]
    calls = [
        {
            "id": ids[i],
            "type": "function",
            "function": {
                "name": _NAME,
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


# --- one call


class _Core(NamedTuple):
    """What a call has between the texts that stand around it."""

    form: CallFormat
    start: int
    end: int


def _core(text: str, offset: int, word: str) -> _Core | None:
    """The first call at or after an offset, whose text argument is `word`."""
    at = text.find(_NAME, offset)
    if at < 0 or word not in text[offset:]:
        return None
    for find in (_json_core, _named_core, _python_core, _gemma_core, _tagged_core):
        if (core := find(text, offset, at, word)) is not None:
            return core
    return None


def _json_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    for start in _places(text, "{", offset, at):
        found, end = _decode(text, start)
        if isinstance(found, dict) and at < end:
            form = _keys(cast("dict[str, object]", found))
            return None if form is None else _Core(form, start, end)
    return None


def _keys(call: Mapping[str, object], wrapper: str = "") -> CallFormat | None:
    """The keys of a call's object."""
    arguments = next((key for key, value in call.items() if _has_word(value)), None)
    if arguments is None:
        return None
    name = next((key for key, value in call.items() if value == _NAME), None)
    inner = call[arguments]
    if name is None and arguments != _NAME:  # {"type": "function", "function": {...}}
        is_wrapper = isinstance(inner, dict) and _NAME in cast("dict[str, object]", inner).values()
        return _keys(cast("dict[str, object]", inner), arguments) if is_wrapper else None
    id_key = next((key for key in call if key.endswith("id")), "")
    keys = list(call)
    return CallFormat(
        kind="json",
        name_key=name or "",
        arguments_key="" if name is None else arguments,
        wrapper_key=wrapper,
        id_key=id_key,
        id_is_first=bool(id_key) and keys.index(id_key) < keys.index(name or arguments),
    )


def _has_word(value: object) -> bool:
    return _TEXT_KEY in (value if isinstance(value, str) else json.dumps(value))


def _named_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    for brace in _places(text, "{", at, len(text)):
        found, end = _decode(text, brace)
        if isinstance(found, dict) and _TEXT_KEY in found:
            start = text.rfind(_NAME, offset, brace)
            form = CallFormat(kind="named", after_name=text[start + len(_NAME) : brace])
            return _Core(form, start, end)
    return None


def _python_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    pattern = rf"{_NAME}\({_TEXT_KEY}=.{word}., {_NUMBER_KEY}={_NUMBER}\)"
    found = re.compile(pattern).search(text, at)
    return None if found is None else _Core(CallFormat(kind="python"), found.start(), found.end())


def _gemma_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    pattern = rf"{_NAME}{{[^{{}}]*{_TEXT_KEY}:[^{{}}]*{word}[^{{}}]*}}"
    found = re.compile(pattern).search(text, at)
    return None if found is None else _Core(CallFormat(kind="gemma"), found.start(), found.end())


def _tagged_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    places: list[tuple[int, int]] = []
    end = at
    for part in (_TEXT_KEY, word, _NUMBER_KEY, str(_NUMBER)):
        start = text.find(part, end)
        if start < 0:
            return None
        end = start + len(part)
        places.append((start, end))
    key, value, other_key, number = places
    start = text.rfind(_NAME, offset, key[0])
    after_name = text[start + len(_NAME) : key[0]]
    between = text[value[1] : other_key[0]].replace(_TEXT_KEY, KEY)
    opens = _from_tag(_common_suffix(after_name, between))
    closes = between.removesuffix(opens)
    equals = _merged(text[key[1] : value[0]], text[other_key[1] : number[0]])
    after = closes.replace(KEY, _NUMBER_KEY)
    if not text.startswith(after, number[1]) or not equals.strip():
        return None
    before, _, rest = equals.partition(ANY)
    mark = text[key[1] + len(before) : value[0] - len(rest)] if ANY in equals else ""
    form = CallFormat(
        kind="tagged",
        after_name=after_name.removesuffix(opens),
        argument_opens=opens,
        argument_equals=equals,
        argument_closes=closes,
        string_mark=mark,
    )
    return _Core(form, start, number[1] + len(after))


# --- what stands around calls


def derive_calls(one: str, two: str | None, others: Sequence[str]) -> CallFormat | None:
    """The format of calls; None: it is of no known kind.

    Args:
        one: a conversation whose answer is one call.
        two: the same with two calls; None: the template refuses more than one.
        others: the same conversation with other answers, or none.
    """
    for probe in _IDS:
        one, two = one.replace(probe, ANY), None if two is None else two.replace(probe, ANY)
    common = max(len(_common_prefix(one, other)) for other in others)
    first = _core(one, common - len(_NAME) if common > len(_NAME) else 0, _WORD)
    if first is None:
        return None
    before = one[_outside_tag(one, min(common, first.start)) : first.start].replace(_NAME, ANY)
    end_of_turn = others[-1].rpartition(_CONTENT)[2]
    again = None if two is None else _core(two, first.start, _WORD)
    second = None if again is None or two is None else _core(two, again.end, _OTHER_WORD)
    if two is None or again is None or second is None:
        closes = _without_end(one[first.end :], end_of_turn)
        return _stripped(replace(first.form, opens=before, closes=closes))
    between, after = two[again.end : second.start], two[second.end :]
    opens = _common_suffix(before, between)
    opens = opens if opens == before else _from_tag(opens)
    rest = between.removesuffix(opens)
    closes = _common_prefix(rest, after)
    closes = closes if closes == rest else _to_tag(closes)
    outer = before.removesuffix(opens)
    outer = outer if outer.strip(ANY + string.whitespace) else ""
    return _stripped(
        replace(
            _both(again.form, second.form),
            opens=opens,
            closes=closes,
            section_opens=outer,
            section_closes=_without_end(after.removeprefix(closes), end_of_turn) if outer else "",
        )
    )


def _both(first: CallFormat, second: CallFormat) -> CallFormat:
    """The format of both calls, of which one may have another number than the other."""
    return replace(first, after_name=_merged(first.after_name, second.after_name))


def _stripped(form: CallFormat) -> CallFormat | None:
    """Without the white space around the texts, which models do not always write alike."""
    opens, closes = form.section_opens.strip(), form.section_closes.strip()
    first = form.opens.strip()
    is_list = form.kind in ("json", "python") and (opens or first).endswith("[")
    if is_list and opens:
        opens, closes = opens.removesuffix("[").strip(), closes.removeprefix("]").strip()
    elif is_list:  # a single call was shown
        opens, closes = (
            first.removesuffix("[").strip(),
            form.closes.strip().removeprefix("]").strip(),
        )
        form = replace(form, opens="", closes="")
    if form.kind in ("named", "tagged") and not (opens or form.opens.strip()):
        return None  # nothing tells a call from text
    return replace(
        form,
        section_opens=opens,
        section_closes=closes,
        is_list=is_list,
        opens=form.opens.strip(),
        closes=form.closes.strip(),
        argument_opens=form.argument_opens.strip(),
    )


# --- reasoning, and the answer proper


def _reasoning(render: Render, source: str) -> Reasoning | None:
    for field in _REASONING_FIELDS:
        message = {"role": "assistant", "content": _CONTENT, field: _THOUGHT}
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
    before = content.partition(_CONTENT)[0]
    before = before[_outside_tag(before, len(_common_prefix(before, begun))) :]
    if reasoning is not None:
        before = before.rpartition(reasoning.closes)[2]
    return before.strip() if _TAG.search(before) else ""


def _after_content(render: Render, history: History, content: str) -> str:
    """The tag after the answer proper: it comes before calls as well."""
    both = _attempt(render, [_USER, {**_message(history, 1), "content": _CONTENT}]) or ""
    after = both.partition(_CONTENT)[2]
    return _to_tag(_common_prefix(content.partition(_CONTENT)[2], after)).strip()


# --- texts


def _decode(text: str, start: int) -> tuple[object, int]:
    """The JSON value that begins there, and its end; None and 0: there is none."""
    try:
        return cast("tuple[object, int]", json.JSONDecoder(strict=False).raw_decode(text, start))
    except ValueError:
        return None, 0


def _places(text: str, char: str, start: int, end: int) -> Iterator[int]:
    while (start := text.find(char, start, end)) >= 0:
        yield start
        start += 1


def _common_prefix(one: str, other: str) -> str:
    for size, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:size]
    return min(one, other, key=len)


def _common_suffix(one: str, other: str) -> str:
    size = len(_common_prefix(one[::-1], other[::-1]))
    return one[len(one) - size :]


def _merged(one: str, other: str) -> str:
    """A text that both are, with `ANY` where they differ."""
    if one == other:
        return one
    start = _common_prefix(one, other)
    end = _common_suffix(one[len(start) :], other[len(start) :])
    return start.rstrip(_WORD_CHARS) + ANY + end.lstrip(_WORD_CHARS)  # words differ as a whole


def _outside_tag(text: str, at: int) -> int:
    """The place, or the beginning of the tag in which it is."""
    tag = text.rfind("<", 0, at)
    return tag if tag > text.rfind(">", 0, at) else at


def _from_tag(text: str) -> str:
    """The text from its first tag on: what is before it is the end of another."""
    found = re.search(r"[<\[]", text)
    return text[found.start() :] if found else ""


def _to_tag(text: str) -> str:
    """The text to the end of its last tag: what comes after it is the beginning of another."""
    return text[: max(text.rfind(">"), text.rfind("]"), text.rfind("`")) + 1]


def _without_end(text: str, end_of_turn: str) -> str:
    common = _common_suffix(text, end_of_turn)
    return text.removesuffix(common if common == text else _from_tag(common))
