"""The layers of the model as one bar: a coloured piece per computer, with its range and name."""

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QHelpEvent, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from potluck_app import wording
from potluck_app.theme import Theme
from potluck_app.tokens import ON_NODE_COLOR, node_color
from potluck_app.viewmodels.model_card import Segment
from potluck_app.views.widgets.words import Described

_BAR, _NAMES = 26, 20
_GAP = 2
_MIN_WIDTH = 34.0  # pixels, so that a piece of one layer among eighty still shows its number


class LayerBar(Described, QWidget):
    """Shows which computer holds which layers."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._segments: tuple[Segment, ...] = ()
        self.setObjectName("layer-bar")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(_BAR + _NAMES)
        theme.changed.connect(self.update)

    def show_segments(self, segments: tuple[Segment, ...]) -> None:
        self._segments = segments
        self.setVisible(bool(segments))
        described = ", ".join(f"{s.name} layers {s.text}" for s in segments)
        self.setAccessibleName(f"Layers: {described}")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(400, _BAR + _NAMES)

    def rectangles(self) -> list[QRectF]:
        """Return the place of each piece: in proportion to its layers, but never too narrow."""
        if not self._segments:
            return []
        room = self.width() - _GAP * (len(self._segments) - 1)
        counts = [segment.stop - segment.start for segment in self._segments]
        least = min(_MIN_WIDTH, room / len(counts))
        spare = room - least * len(counts)
        result: list[QRectF] = []
        x = 0.0
        for count, width in zip(counts, _shares(counts, room, least, spare), strict=True):
            assert count > 0
            result.append(QRectF(x, 0, width, _BAR))
            x += width + _GAP
        return result

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        outline = QPainterPath()
        outline.addRoundedRect(QRectF(0, 0, self.width(), _BAR), 6, 6)
        painter.setClipPath(outline)
        painter.setFont(self._theme.ui_font(12, QFont.Weight.Bold))
        rectangles = self.rectangles()
        for segment, rect in zip(self._segments, rectangles, strict=True):
            painter.fillRect(rect, QColor(node_color(segment.color)))
            painter.setPen(QColor(ON_NODE_COLOR))
            painter.drawText(rect, Qt.AlignmentFlag.AlignCenter, segment.text)
        painter.setClipping(False)
        painter.setFont(self._theme.ui_font(11))
        painter.setPen(QColor(self._theme.tokens.text2))
        metrics = painter.fontMetrics()
        for segment, rect in zip(self._segments, rectangles, strict=True):
            name = metrics.elidedText(
                segment.name, Qt.TextElideMode.ElideRight, int(rect.width()) - 4
            )
            below = QRectF(rect.x(), _BAR + 3, rect.width(), _NAMES - 3)
            painter.drawText(below, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, name)
        painter.end()

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            for segment, rect in zip(self._segments, self.rectangles(), strict=True):
                if rect.left() <= event.pos().x() <= rect.right():
                    QToolTip.showText(event.globalPos(), wording.tip(segment.tip), self)
                    return True
        return super().event(event)


def _shares(counts: list[int], room: float, least: float, spare: float) -> list[float]:
    """Return widths in proportion to the counts, each at least `least`, with the sum `room`."""
    total = sum(counts)
    wanted = [room * count / total for count in counts]
    if min(wanted) >= least:
        return wanted
    over = [max(width - least, 0.0) for width in wanted]
    scale = spare / sum(over) if sum(over) else 0.0
    return [least + extra * scale for extra in over]
