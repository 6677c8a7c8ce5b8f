"""Texts that have tags in them, compared and cut at the tags."""

import re
import string

from potluck.model.answers.format import ANY

_WORD_CHARS = string.ascii_letters + string.digits


def common_prefix(one: str, other: str) -> str:
    """What two texts begin with."""
    for size, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return one[:size]
    return min(one, other, key=len)


def common_suffix(one: str, other: str) -> str:
    """What two texts end with."""
    size = len(common_prefix(one[::-1], other[::-1]))
    return one[len(one) - size :]


def merged(one: str, other: str) -> str:
    """A text that both are, with `ANY` where they differ."""
    if one == other:
        return one
    start = common_prefix(one, other)
    end = common_suffix(one[len(start) :], other[len(start) :])
    return start.rstrip(_WORD_CHARS) + ANY + end.lstrip(_WORD_CHARS)  # words differ as a whole


def outside_tag(text: str, at: int) -> int:
    """The place, or the beginning of the tag in which it is."""
    tag = text.rfind("<", 0, at)
    return tag if tag > text.rfind(">", 0, at) else at


def from_tag(text: str) -> str:
    """The text from its first tag on: what is before it is the end of another."""
    found = re.search(r"[<\[]", text)
    return text[found.start() :] if found else ""


def to_tag(text: str) -> str:
    """The text to the end of its last tag: what comes after it is the beginning of another."""
    return text[: max(text.rfind(">"), text.rfind("]"), text.rfind("`")) + 1]


def without_end(text: str, end_of_turn: str) -> str:
    """The text without the tags that it ends with as another does: those of the turn."""
    common = common_suffix(text, end_of_turn)
    return text.removesuffix(common if common == text else from_tag(common))
