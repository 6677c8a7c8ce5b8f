"""Show a text exactly as it was written: nothing in it is markup, and no word is too long for its line."""

import math
import re

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QResizeEvent, QTextOption, QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextEdit

from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.widgets.highlights import highlight
from potluck_app.views.widgets.words import Described


class PlainView(Described, QTextEdit):
    """A text of a person or of a model, as high as its lines. It can be selected with the mouse.

    Args:
        theme: of the window.
        accessible_name: what the text is.
        kind: of a label, which decides its colour.
    """

    def __init__(self, theme: Theme, accessible_name: str, kind: str = "body") -> None:
        super().__init__()
        self._theme = theme
        self._text = ""
        self.setAccessibleName(said(accessible_name))
        self.setProperty("kind", kind)
        self.setReadOnly(True)
        self.setAcceptRichText(False)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        # A label would cut a word that is wider than itself, such as an address.
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.document().setDocumentMargin(0)
        theme.changed.connect(self._on_theme)
        self._on_theme()

    def show_text(self, text: str) -> None:
        """Show this text. If it only grew, what is there already is not laid out again."""
        before, self._text = self._text, text
        if text == before:
            return
        if before and text.startswith(before):
            end = self.textCursor()
            end.movePosition(end.MoveOperation.End)
            end.insertText(text[len(before) :])
        else:
            self.setPlainText(text)
        self._fit()

    def text(self) -> str:
        return self._text

    def fit(self, width: int) -> None:
        """Wrap the text at this width, before the layout gives the widget its width."""
        self.document().setTextWidth(width)
        self._fit()

    def highlight(self, pattern: re.Pattern[str]) -> int | None:
        """Mark these words. Returns the place of the first from the top, in pixels."""
        return highlight(self, self._theme, pattern)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the page scrolls, not the text

    def minimumSizeHint(self) -> QSize:
        return QSize(40, 0)

    def _on_theme(self) -> None:
        self.document().setDefaultFont(self._theme.ui_font())
        self._fit()

    def _fit(self) -> None:
        height = math.ceil(self.document().size().height())
        if height != self.height():
            self.setFixedHeight(height)
