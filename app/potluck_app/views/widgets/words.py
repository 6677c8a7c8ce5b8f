"""Widgets that say their texts in the language of the window.

They are given English texts, and give these back: the program asks a button for its text to know
what it does. What the screen and a screen reader show is in the person's language.
"""

import html
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QActionEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QLineEdit, QMenu, QPushButton, QToolButton, QWidget

from potluck_app import resources, wording
from potluck_app.language import said

_MARK, _MARK_LEFT = 16, 8  # pixels of the mark in a menu, and before it
_Base = QWidget if TYPE_CHECKING else object


def said_in_tip(tip: str) -> str:
    """Say a text that `wording.tip` has escaped."""
    if not tip.startswith("<qt>"):
        return said(tip)
    text = html.unescape(tip.removeprefix("<qt>").removesuffix("</qt>").replace("<br>", "\n"))
    return wording.tip(wording.together(said(text)))


class Described(_Base):
    """What a widget says to a screen reader and in its tooltip."""

    def setAccessibleName(self, name: str) -> None:
        super().setAccessibleName(said(name))

    def setAccessibleDescription(self, description: str) -> None:
        super().setAccessibleDescription(said(description))

    def setToolTip(self, tip: str) -> None:
        super().setToolTip(said_in_tip(tip))


class Label(Described, QLabel):
    """A label in the language of the window."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._given = ""
        self.setText(text)

    def setText(self, text: str) -> None:
        self._given = text
        shown = said(text)
        is_copied = bool(self.textInteractionFlags() & Qt.TextInteractionFlag.TextSelectableByMouse)
        is_free = self.wordWrap() and not is_copied
        super().setText(wording.breakable(wording.together(shown)) if is_free else shown)

    def setWordWrap(self, on: bool) -> None:
        super().setWordWrap(on)
        self.setText(self._given)

    def setTextInteractionFlags(self, flags: Qt.TextInteractionFlag) -> None:
        super().setTextInteractionFlags(flags)
        self.setText(self._given)  # what is copied has no break in it

    def text(self) -> str:
        return self._given


class PushButton(Described, QPushButton):
    """A push button in the language of the window."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._given = ""
        self.setText(text)

    def setText(self, text: str) -> None:
        self._given = text
        super().setText(said(text))

    def text(self) -> str:
        return self._given


class ToolButton(Described, QToolButton):
    """A flat button in the language of the window."""

    def __init__(self) -> None:
        super().__init__()
        self._given = ""

    def setText(self, text: str) -> None:
        self._given = text
        super().setText(said(text))

    def text(self) -> str:
        return self._given


class Line(Described, QLineEdit):
    """A field of one line, whose hint is in the language of the window."""

    def setPlaceholderText(self, text: str) -> None:
        super().setPlaceholderText(said(text))


class Menu(Described, QMenu):
    """A menu in the language of the window. What is chosen has the same mark as a check box."""

    def actionEvent(self, event: QActionEvent) -> None:
        if event.type() in (QEvent.Type.ActionAdded, QEvent.Type.ActionChanged):
            text = event.action().text()
            event.action().setText("\t".join(map(said, text.split("\t"))))
        super().actionEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter, palette = QPainter(self), self.palette()
        for action in self.actions():
            if action.isChecked():
                group = (
                    palette.ColorGroup.Normal if action.isEnabled() else palette.ColorGroup.Disabled
                )
                color = palette.color(group, palette.ColorRole.Text).name()
                mark = resources.pixmap("check", color, _MARK, self.devicePixelRatioF())
                place = self.actionGeometry(action)
                painter.drawPixmap(place.left() + _MARK_LEFT, place.center().y() - _MARK // 2, mark)
        painter.end()
