"""A check box whose frame is seen on dark windows too: Fusion draws it darker than the window."""

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QPaintEvent, QPalette, QPen
from PySide6.QtWidgets import QCheckBox, QStyle, QStyleOptionButton

from potluck_app import resources
from potluck_app.language import said
from potluck_app.views.widgets.words import Described

_RADIUS = 4


class CheckBox(Described, QCheckBox):
    """A choice that is on or off."""

    def __init__(self, text: str, name: str) -> None:
        """`name` is its stable id."""
        super().__init__(said(text))
        self.setObjectName(name)

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
