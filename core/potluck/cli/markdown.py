"""Markdown on a terminal, while it streams: what is known so far is shown at once.

Headings and `**bold**` are bold, `*emphasis*` is italic, `code` has a colour, code blocks have a margin,
items of lists have a bullet, and what a model thinks (`<think>`) is dim. Emphasis ends with its line, so
a stray asterisk changes little. All else (tables, links) is shown as it was written.
"""

import re
from dataclasses import dataclass

from potluck.api.v1.tagged_reply import THINK, THOUGHT

BOLD, DIM, ITALIC, CODE = "1", "2", "3", "36"  # SGR parameters of ECMA-48; 36 is cyan
MARGIN = "│ "
_STYLES = {"**": BOLD, "*": ITALIC, "`": CODE}

# The start of a line that may become something else with the next characters.
_UNDECIDED = re.compile(r" *(#{1,6}|[-*+]|`{1,2}|(`{3,}|~{3,})[^`]*|~~?|<t?h?i?n?k?|) *")
_FENCE = re.compile(r" *(`{3,}|~{3,}) *([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6} +")
_ITEM = re.compile(r"( *)[-*+] +")
_SPECIAL = re.compile(r"[*`\\\n]")
_ESCAPED = "\\`*_{}[]()#+-.!<>|~"


@dataclass(frozen=True, slots=True)
class Span:
    """Text in one style: SGR parameters, such as `1;3`; empty: plain."""

    text: str
    style: str = ""


class Markdown:
    """Turns the pieces of one answer into spans. The same answer in other pieces has the same text and styles."""

    def __init__(self) -> None:
        self._held = ""  # what cannot be shown before more is known
        self._at_start = True  # of a line
        self._fence = ""  # what ends the code block
        self._thinks = False
        self._heads = False  # the line is a heading
        self._marks: list[str] = []  # of emphasis that is open
        self._before = " "  # the last character that was shown

    def feed(self, text: str) -> list[Span]:
        """Return what can be shown now."""
        self._held += text
        return self._spans(is_last=False)

    def end(self) -> list[Span]:
        """Return what was held back: the answer has ended."""
        return self._spans(is_last=True)

    def _spans(self, *, is_last: bool) -> list[Span]:
        spans: list[Span] = []
        while self._held:
            span = self._line_start(is_last) if self._at_start else self._in_line(is_last)
            if span is None:
                break
            if span.text:
                self._before = span.text[-1]
                spans.append(span)
        return spans

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text

    def _line_start(self, is_last: bool) -> Span | None:
        line, newline, _ = self._held.partition("\n")
        is_whole = bool(newline) or is_last
        if self._fence:
            return self._code_start(line, newline, is_whole)
        if not is_whole and _UNDECIDED.fullmatch(line):
            return None
        self._at_start = False
        if fence := _FENCE.fullmatch(line):
            self._take(len(line + newline))
            self._fence, self._at_start = fence[1], True
            language = fence[2].strip()
            return Span(f"{MARGIN}{language}\n" if language else "", DIM)
        if heading := _HEADING.match(line):
            self._take(heading.end())
            self._heads = True
        elif item := _ITEM.match(line):
            self._take(item.end())
            return Span(f"{item[1]}• ")
        elif line.startswith(THINK):
            self._take(len(THINK))
            self._thinks = True
        return Span("")

    def _code_start(self, line: str, newline: str, is_whole: bool) -> Span | None:
        bare = line.strip()
        if not is_whole and (self._fence.startswith(bare) or not bare.strip(self._fence[0])):
            return None
        if bare.startswith(self._fence) and not bare.strip(self._fence[0]):
            self._take(len(line + newline))
            self._fence = ""
            return Span("")
        self._at_start = False
        return Span(MARGIN, DIM)

    def _in_line(self, is_last: bool) -> Span | None:
        if self._thinks:
            return self._thought(is_last)
        if self._fence:
            end = self._held.find("\n") + 1
            self._at_start = end > 0
            return Span(self._take(end or len(self._held)))
        special = _SPECIAL.search(self._held)
        if special is None or special.start() > 0:
            return self._styled(self._take(special.start() if special else len(self._held)))
        match special[0]:
            case "\n":
                self._at_start, self._heads, self._marks = True, False, []
                return Span(self._take(1))
            case "`":
                self._toggle(self._take(1))
                return Span("")
            case _ if "`" in self._marks:
                return self._styled(self._take(1))
            case "\\":
                return self._escape(is_last)
            case _:
                return self._emphasis(is_last)

    def _thought(self, is_last: bool) -> Span | None:
        text, found, _ = self._held.partition(THOUGHT)
        if found:
            self._take(len(text + found))
            self._thinks = False
            return Span(text, DIM)
        keep = 0  # the end of what is held may be the beginning of the mark
        if not is_last:
            ends = range(len(THOUGHT) - 1, 0, -1)
            keep = next((n for n in ends if self._held.endswith(THOUGHT[:n])), 0)
        shown = self._take(len(self._held) - keep)
        return Span(shown, DIM) if shown else None

    def _escape(self, is_last: bool) -> Span | None:
        if len(self._held) == 1 and not is_last:
            return None
        if self._held[1:2] and self._held[1] in _ESCAPED:
            self._take(1)
        return self._styled(self._take(1))

    def _emphasis(self, is_last: bool) -> Span | None:
        stars = len(self._held) - len(self._held.lstrip("*"))
        if stars == len(self._held) and not is_last:
            return None
        mark = self._held[: min(stars, 2)]
        after = self._held[len(mark) : len(mark) + 1]
        is_inside_word = mark == "*" and self._before.isalnum()
        opens = bool(after.strip()) and not is_inside_word
        if mark in self._marks or opens:
            self._toggle(self._take(len(mark)))
            return Span("")
        return self._styled(self._take(len(mark)))

    def _toggle(self, mark: str) -> None:
        if mark in self._marks:
            self._marks.remove(mark)
        else:
            self._marks.append(mark)

    def _styled(self, text: str) -> Span:
        heading = [BOLD] if self._heads and "**" not in self._marks else []
        return Span(text, ";".join(heading + [_STYLES[mark] for mark in self._marks]))
