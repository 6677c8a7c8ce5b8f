"""A fenced code block: its language, a button to copy it, and its coloured text."""

import re

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import (
    QFontMetrics,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from potluck_app.theme import Theme
from potluck_app.viewmodels.blocks import Code
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import CopyButton, label
from potluck_app.views.widgets.highlighter import Highlighter
from potluck_app.views.widgets.highlights import highlight
from potluck_app.views.widgets.words import Described

_MAX_HEIGHT = 480  # pixels; longer code scrolls inside its block
_MARGIN = 16
_SEEN = 2000  # characters of a line: what is behind them is beyond the edge of every screen


class CodeText(Described, QPlainTextEdit):
    """The text of a code block: not wrapped, as high as its lines, scrolled sideways."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._shown = ""
        self.setReadOnly(True)
        self.setAccessibleName("Code")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setTabChangesFocus(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        # The height is that of the lines: Qt would show a needless bar beside a horizontal one.
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFont(theme.mono_font())
        self.document().setDocumentMargin(0)
        self.highlighter = Highlighter(self.document(), theme)
        theme.changed.connect(self._on_theme)

    def show_text(self, text: str, *, grows: bool = False) -> None:
        """Show a text. The end of a very long line that `grows` comes after a while."""
        shown = self._shown
        if shown and text.startswith(shown):
            more = text[len(shown) :]
            if grows and self._is_out_of_sight(more):
                return
            cursor = self.textCursor()
            cursor.movePosition(cursor.MoveOperation.End)
            cursor.insertText(more)
        else:
            self.setPlainText(text)
            self.horizontalScrollBar().setValue(0)
        self._shown = text
        self._fit()

    def _is_out_of_sight(self, more: str) -> bool:
        """Whether more text is behind the edge, and little beside the line, which is laid out whole with it."""
        line = len(self._shown) - self._shown.rfind("\n")
        return line > _SEEN and "\n" not in more and 8 * len(more) < line

    def _on_theme(self) -> None:
        self.setFont(self._theme.mono_font())
        self._fit()

    def _fit(self) -> None:
        self.updateGeometry()
        height = self._whole_height()
        self.setFixedHeight(min(height, _MAX_HEIGHT))
        policy = Qt.ScrollBarPolicy
        is_cut = height > _MAX_HEIGHT
        self.setVerticalScrollBarPolicy(
            policy.ScrollBarAsNeeded if is_cut else policy.ScrollBarAlwaysOff
        )

    def sizeHint(self) -> QSize:
        return QSize(200, min(self._whole_height(), _MAX_HEIGHT))

    def _whole_height(self) -> int:
        metrics = QFontMetrics(self._theme.mono_font())
        return self.document().blockCount() * metrics.lineSpacing() + _MARGIN

    def wheelEvent(self, event: QWheelEvent) -> None:
        sideways = abs(event.angleDelta().x()) > abs(event.angleDelta().y())
        if sideways or self.verticalScrollBar().maximum() > 0:
            super().wheelEvent(event)
        else:
            event.ignore()


class CodeView(QFrame):
    """One code block."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setProperty("code", "true")
        self._code = Code("", "", closed=False)
        self._language = label("", "meta")
        self.copy = CopyButton(theme, "Copy code", "code-copy", lambda: self._code.text)
        self.text = CodeText(theme)
        head = hbox((self._language, 1), self.copy, margins=(12, 4, 6, 0))
        body = hbox(self.text, margins=(16, 4, 6, 0))
        vbox(head, body, parent=self, margins=(0, 0, 0, 4))

    def show_code(self, code: Code) -> None:
        self._code = code
        self._language.setText(code.language or "text")
        self.text.highlighter.set_language(code.language)
        self.text.show_text(code.text, grows=not code.closed)

    def draw_whole(self) -> None:
        """Draw a text whole that grows no more."""
        self.text.show_text(self._code.text)

    def highlight(self, pattern: re.Pattern[str]) -> int | None:
        """Mark these words. Returns the place of the first from the top, in pixels."""
        place = highlight(self.text, self._theme, pattern)
        return None if place is None else self.text.y() + place
