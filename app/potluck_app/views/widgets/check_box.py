"""A check box that wraps its text, and whose frame is seen on dark windows too.

Fusion draws the frame darker than the window, and Qt's own box is as wide as its text.
"""

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QPen, QResizeEvent
from PySide6.QtWidgets import QCheckBox, QSizePolicy, QStyle, QStyleOptionButton

from potluck_app import resources
from potluck_app.language import said
from potluck_app.views.widgets.words import Described

_RADIUS = 4


class CheckBox(Described, QCheckBox):
    """A choice that is on or off."""

    def __init__(self, text: str, name: str) -> None:
        """`name` is its stable id."""
        self._words = said(text).split()
        super().__init__(" ".join(self._words))
        self.setObjectName(name)
        self.setAccessibleName(text)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Preferred)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def sizeHint(self) -> QSize:
        return self._size_of(" ".join(self._words))

    def minimumSizeHint(self) -> QSize:
        return self._size_of(max(self._words, key=self._advance, default=""))

    def heightForWidth(self, width: int) -> int:
        return self._size_of("\n".join(self._lines(width))).height()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        text = "\n".join(self._lines(event.size().width()))
        if text != self.text():
            self.setText(text)

    def _lines(self, width: int) -> list[str]:
        """The text in lines that have room beside the box."""
        room, lines = width - self._size_of("").width(), [""]
        for word in self._words:
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and self._advance(longer) > room:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def _advance(self, text: str) -> int:
        return self.fontMetrics().size(0, text).width()

    def _size_of(self, text: str) -> QSize:
        """The size with this text beside the box."""
        option = QStyleOptionButton()
        self.initStyleOption(option)
        option.text = text or " "
        room = self.fontMetrics().size(0, text)
        kind = QStyle.ContentsType.CT_CheckBox
        return self.style().sizeFromContents(kind, option, room, self)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        option = QStyleOptionButton()
        self.initStyleOption(option)
        box = self.style().subElementRect(QStyle.SubElement.SE_CheckBoxIndicator, option, self)
        role, palette = QPalette.ColorRole, self.palette()
        is_on = self.isChecked()
        edge = palette.color(role.Highlight if is_on else role.PlaceholderText)
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.fillRect(box, palette.color(self.backgroundRole()))
        painter.setPen(QPen(edge, 1))
        painter.setBrush(palette.color(role.Highlight if is_on else role.Base))
        painter.drawRoundedRect(QRectF(box).adjusted(0.5, 0.5, -0.5, -0.5), _RADIUS, _RADIUS)
        if is_on:
            color = palette.color(role.HighlightedText).name()
            mark = resources.pixmap("check", color, box.width() - 2, self.devicePixelRatioF())
            painter.drawPixmap(box.left() + 1, box.top() + 1, mark)
        painter.end()
