"""Where a long paragraph that still grows can be cut, so that its beginning is not laid out again.

Setting the Markdown of a paragraph takes longer the longer it is, 7 ms for 12 kB, thirty times a second. A paragraph is cut
where one of its lines ends: in two blocks without a gap it looks the same. That may be inside a word: Chinese and
Japanese are written without spaces, and a very long word is broken by its line. What is before the cut must mean the
same without what follows, so a sign there that may begin something which ends later forbids the cut.
"""

import re
from itertools import islice

from PySide6.QtGui import QTextBlock, QTextCursor, QTextDocument

_FEWEST_LINES = 12  # of a paragraph that is cut: a shorter one is quick
_KEPT_LINES = 4  # below the cut: the last one still changes
_TRIED_LINES = 8  # at whose beginning a cut is tried
_WORD = re.compile(r"\S+")
_OPEN = frozenset(
    "*_`~[]<>$\\|&"
)  # still seen in the text, they may belong to a sign that comes later


def cut_of(
    block: QTextBlock, source: str, features: QTextDocument.MarkdownFeature
) -> tuple[int, int] | None:
    """Return where to cut a plain paragraph: in its text, as Qt counts, and in its Markdown; None: nowhere.

    Args:
        block: the paragraph, laid out.
        source: its Markdown, with formulas as code.
        features: with which it was read.
    """
    layout, text = block.layout(), block.text()
    count = layout.lineCount()
    if count < _FEWEST_LINES:
        return None
    for number in range(count - _KEPT_LINES, max(count - _KEPT_LINES - _TRIED_LINES, 0), -1):
        start = layout.lineAt(number).textStart()
        before = _beginning(text, start)
        behind = text[len(before) : len(before) + 1]
        if not behind.isalpha() or _is_link(block, start):
            continue  # in a new block, other signs could begin a list or a heading, and half a link is none
        if not _OPEN.isdisjoint(before):
            return None
        place = _place_of(before, behind, source)
        if place is not None and _reads_as(before, source[:place], features):
            return start, place
    return None


def _beginning(text: str, units: int) -> str:
    """The first characters of a text, counted as Qt does: one beyond 16 bits is two units."""
    if text.isascii():
        return text[:units]
    return text.encode("utf-16-le")[: 2 * units].decode("utf-16-le", errors="ignore")


def _is_link(block: QTextBlock, position: int) -> bool:
    """Whether the character behind this place belongs to a link, such as an address that is broken there."""
    cursor = QTextCursor(block)
    cursor.setPosition(block.position() + position + 1)
    return cursor.charFormat().isAnchor()


def _place_of(before: str, behind: str, source: str) -> int | None:
    """Where in the Markdown the character stands that follows this text; None: it is not found.

    Words are counted, since markup has as many as the text that it makes. In a word, the characters that are markup
    are passed over. The result may be wrong where an address follows the words of a link.
    """
    words = before.split()
    is_inside = bool(words) and not before[-1].isspace()
    number = len(words) - is_inside
    word = next(islice(_WORD.finditer(source), number, None), None)
    if word is None:
        return None
    place = word.start()
    for character in words[-1] if is_inside else "":
        place = source.find(character, place, word.end()) + 1
        if not place:
            return None
    is_there = source.startswith(
        behind, place
    )  # else markup stands between, which may have begun before
    return place if is_there else None


def _reads_as(text: str, source: str, features: QTextDocument.MarkdownFeature) -> bool:
    reading = QTextDocument()
    reading.setMarkdown(source, features)
    return reading.toPlainText() == text.rstrip()
