"""A check box that wraps its text, and whose frame is seen on dark windows too.

Fusion draws the frame darker than the window, and Qt's own box is as wide as its text.
"""

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QPen, QResizeEvent
from PySide6.QtWidgets import QCheckBox, QSizePolicy, QStyle, QStyleOptionButton

from potluck_app import resources
from potluck_app.language import said
from potluck_app.views.words import Described

_RADIUS = 4


class CheckBox(Described, QCheckBox):
    """A choice that is on or off."""

    def __init__(self, text: str, name: str) -> None:
        """`name` is its stable id."""
        self._words = said(text).split()
        super().__init__(" ".join(self._words))
        self.setObjectName(name)
        self.setAccessibleName(text)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def sizeHint(self) -> QSize:
        wide = self._beside() + self._advance(" ".join(self._words))
        return QSize(wide, self._height(1))

    def minimumSizeHint(self) -> QSize:
        widest = max(map(self._advance, self._words), default=0)
        return QSize(self._beside() + widest, self._height(1))

    def heightForWidth(self, width: int) -> int:
        return self._height(len(self._lines(width)))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        text = "\n".join(self._lines(event.size().width()))
        if text != self.text():
            self.setText(text)

    def _lines(self, width: int) -> list[str]:
        """The text in lines that have room beside the box."""
        room, lines = width - self._beside(), [""]
        for word in self._words:
            longer = f"{lines[-1]} {word}".lstrip()
            if lines[-1] and self._advance(longer) > room:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def _advance(self, text: str) -> int:
        return self.fontMetrics().size(0, text).width()

    def _beside(self) -> int:
        """Pixels of the box and the gap behind it: the size that Qt knows, without its text."""
        return super().sizeHint().width() - max(map(self._advance, self.text().split("\n")))

    def _height(self, lines: int) -> int:
        more = lines - 1 - self.text().count("\n")
        return super().sizeHint().height() + more * self.fontMetrics().lineSpacing()

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
