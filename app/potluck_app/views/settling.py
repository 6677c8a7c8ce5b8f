"""Where a long paragraph that still grows can be cut, so that its beginning is not laid out again.

Setting the Markdown of a paragraph takes longer the longer it is, 7 ms for 12 kB, thirty times a second. A paragraph is cut
where one of its lines ends: in two blocks without a gap it looks the same. What is before the cut must mean the
same without what follows, so a sign there that may begin something which ends later forbids the cut.
"""

import re
from itertools import islice

from PySide6.QtGui import QTextBlock, QTextDocument

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
    """Return where to cut a plain paragraph: in its text, and in its Markdown; None: nowhere.

    Args:
        block: the paragraph, laid out.
        source: its Markdown.
        features: with which it was read.
    """
    layout, text = block.layout(), block.text()
    count = layout.lineCount()
    if count < _FEWEST_LINES:
        return None
    for number in range(count - _KEPT_LINES, max(count - _KEPT_LINES - _TRIED_LINES, 0), -1):
        start = layout.lineAt(number).textStart()
        if not (text[start - 1] == " " and text[start].isalpha()):
            continue  # in a new block, other signs could begin a list or a heading
        before = text[:start]
        if not _OPEN.isdisjoint(before):
            return None
        word = next(islice(_WORD.finditer(source), len(before.split()), None), None)
        if word is not None and source[word.start()].isalpha():
            reading = QTextDocument()
            reading.setMarkdown(source[: word.start()], features)
            if reading.toPlainText() == before.rstrip():
                return start, word.start()
    return None
