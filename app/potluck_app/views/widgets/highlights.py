"""Mark words in a text that can only be read."""

import re

from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit

from potluck_app.theme import Theme

NOTHING = re.compile(r"(?!)")  # is found nowhere
_MOST = 200  # marks in one text


def highlight(
    view: QTextEdit | QPlainTextEdit, theme: Theme, pattern: re.Pattern[str]
) -> int | None:
    """Mark all places of a pattern, in place of the marks of before.

    Returns:
        The place of the first from the top of the text, in pixels; None: there is none.
    """
    style = QTextCharFormat()
    style.setBackground(QColor(theme.tokens.warn_soft))
    style.setForeground(QColor(theme.tokens.warn))
    marks: list[QTextEdit.ExtraSelection] = []
    # Qt counts in UTF-16: a character beyond its first plane counts twice.
    text = "" if pattern is NOTHING else view.document().toPlainText()
    for found in pattern.finditer(text):
        mark = QTextEdit.ExtraSelection()
        cursor = QTextCursor(view.document())
        cursor.setPosition(_utf16(text[: found.start()]))
        cursor.setPosition(_utf16(text[: found.end()]), QTextCursor.MoveMode.KeepAnchor)
        mark.cursor, mark.format = cursor, style  # pyright: ignore[reportAttributeAccessIssue]
        marks.append(mark)
        if len(marks) == _MOST:
            break
    view.setExtraSelections(marks)
    return view.cursorRect(marks[0].cursor).top() if marks else None  # pyright: ignore[reportAttributeAccessIssue]


def _utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
