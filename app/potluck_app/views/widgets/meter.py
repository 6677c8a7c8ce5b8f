"""A bar that shows which share of something is used or done."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from potluck_app import wording
from potluck_app.theme import Theme
from potluck_app.tokens import Tone
from potluck_app.views.widgets.words import Described


class Meter(Described, QWidget):
    """A bar that shows which share of something is used or done."""

    def __init__(self, theme: Theme, accessible_name: str, height: int = 6) -> None:
        super().__init__()
        self._theme = theme
        self._fraction = 0.0
        self._limit = 1.0
        self._tone: Tone = "accent"
        self.setAccessibleName(accessible_name)
        self.setFixedHeight(height)
        theme.changed.connect(self.update)

    @property
    def fraction(self) -> float:
        return self._fraction

    @property
    def limit(self) -> float:
        return self._limit

    def show_fraction(self, fraction: float, tone: Tone = "accent", *, limit: float = 1.0) -> None:
        """Show a share of the whole, of which it can have no more than `limit`."""
        self._fraction, self._limit = min(max(fraction, 0.0), 1.0), min(max(limit, 0.0), 1.0)
        self._tone = tone
        self.setAccessibleDescription(wording.percent(self._fraction))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(120, self.height())

    def paintEvent(self, event: QPaintEvent) -> None:
        tokens = self._theme.tokens
        radius = self.height() / 2
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(tokens.surface2))
        painter.drawRoundedRect(QRectF(self.rect()), radius, radius)
        painter.setBrush(QColor(tokens.border))
        width = max(self._limit * self.width(), self.height())
        painter.drawRoundedRect(QRectF(0, 0, width, self.height()), radius, radius)
        if self._fraction > 0:
            width = max(self._fraction * self.width(), self.height())
            painter.setBrush(QColor(tokens.fill(self._tone)))
            painter.drawRoundedRect(QRectF(0, 0, width, self.height()), radius, radius)
        painter.end()
