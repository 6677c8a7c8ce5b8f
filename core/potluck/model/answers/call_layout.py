"""Find how calls are written in what a template writes for known ones.

The text before a call, between two calls, and after them has the parts that belong to each call, and those
that belong to all.
"""

import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from msgspec.structs import replace

from potluck.model.answers.format import ANY, KEY, CallFormat
from potluck.model.answers.tags import (
    common_prefix,
    common_suffix,
    from_tag,
    merged,
    outside_tag,
    to_tag,
    without_end,
)

NAME, TEXT_KEY, NUMBER_KEY = "probe_function", "probe_word", "probe_count"
WORD, OTHER_WORD, NUMBER = "probe value", "other value", 41
IDS = ("probecal1", "probecal2")  # as long as Mistral's have to be
CONTENT = "probe of content"


class _Core(NamedTuple):
    """What a call has between the texts that stand around it."""

    form: CallFormat
    start: int
    end: int


def _core(text: str, offset: int, word: str) -> _Core | None:
    """The first call at or after an offset, whose text argument is `word`."""
    at = text.find(NAME, offset)
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
    name = next((key for key, value in call.items() if value == NAME), None)
    inner = call[arguments]
    if name is None and arguments != NAME:  # {"type": "function", "function": {...}}
        is_wrapper = isinstance(inner, dict) and NAME in cast("dict[str, object]", inner).values()
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
    return TEXT_KEY in (value if isinstance(value, str) else json.dumps(value))


def _named_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    for brace in _places(text, "{", at, len(text)):
        found, end = _decode(text, brace)
        if isinstance(found, dict) and TEXT_KEY in found:
            start = text.rfind(NAME, offset, brace)
            form = CallFormat(kind="named", after_name=text[start + len(NAME) : brace])
            return _Core(form, start, end)
    return None


def _python_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    pattern = rf"{NAME}\({TEXT_KEY}=.{word}., {NUMBER_KEY}={NUMBER}\)"
    found = re.compile(pattern).search(text, at)
    return None if found is None else _Core(CallFormat(kind="python"), found.start(), found.end())


def _gemma_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    pattern = rf"{NAME}{{[^{{}}]*{TEXT_KEY}:[^{{}}]*{word}[^{{}}]*}}"
    found = re.compile(pattern).search(text, at)
    return None if found is None else _Core(CallFormat(kind="gemma"), found.start(), found.end())


def _tagged_core(text: str, offset: int, at: int, word: str) -> _Core | None:
    places: list[tuple[int, int]] = []
    end = at
    for part in (TEXT_KEY, word, NUMBER_KEY, str(NUMBER)):
        start = text.find(part, end)
        if start < 0:
            return None
        end = start + len(part)
        places.append((start, end))
    key, value, other_key, number = places
    start = text.rfind(NAME, offset, key[0])
    after_name = text[start + len(NAME) : key[0]]
    between = text[value[1] : other_key[0]].replace(TEXT_KEY, KEY)
    opens = from_tag(common_suffix(after_name, between))
    closes = between.removesuffix(opens)
    equals = merged(text[key[1] : value[0]], text[other_key[1] : number[0]])
    after = closes.replace(KEY, NUMBER_KEY)
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
    for probe in IDS:
        one, two = one.replace(probe, ANY), None if two is None else two.replace(probe, ANY)
    common = max(len(common_prefix(one, other)) for other in others)
    first = _core(one, common - len(NAME) if common > len(NAME) else 0, WORD)
    if first is None:
        return None
    before = one[outside_tag(one, min(common, first.start)) : first.start].replace(NAME, ANY)
    end_of_turn = others[-1].rpartition(CONTENT)[2]
    again = None if two is None else _core(two, first.start, WORD)
    second = None if again is None or two is None else _core(two, again.end, OTHER_WORD)
    if two is None or again is None or second is None:
        closes = without_end(one[first.end :], end_of_turn)
        return _stripped(replace(first.form, opens=before, closes=closes))
    between, after = two[again.end : second.start], two[second.end :]
    opens = common_suffix(before, between)
    opens = opens if opens == before else from_tag(opens)
    rest = between.removesuffix(opens)
    closes = common_prefix(rest, after)
    closes = closes if closes == rest else to_tag(closes)
    outer = before.removesuffix(opens)
    outer = outer if outer.strip(ANY + string.whitespace) else ""
    return _stripped(
        replace(
            _both(again.form, second.form),
            opens=opens,
            closes=closes,
            section_opens=outer,
            section_closes=without_end(after.removeprefix(closes), end_of_turn) if outer else "",
        )
    )


def _both(first: CallFormat, second: CallFormat) -> CallFormat:
    """The format of both calls, of which one may have another number than the other."""
    return replace(first, after_name=merged(first.after_name, second.after_name))


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
