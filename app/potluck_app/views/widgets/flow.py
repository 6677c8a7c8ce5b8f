"""A row that goes on in the next line."""

from PySide6.QtCore import QPoint, QRect, QSize
from PySide6.QtWidgets import QLayoutItem

from potluck_app.views.widgets.placing import Placing

_GAP = 8


class Flow(Placing):
    """Places its items side by side, and goes on in the next line."""

    def sizeHint(self) -> QSize:
        return self._size_in_a_row(_GAP)

    def minimumSize(self) -> QSize:
        return QSize(
            max((item.minimumSize().width() for item in self._items), default=0),
            max((item.minimumSize().height() for item in self._items), default=0),
        )

    def _place(self, rect: QRect, *, is_real: bool) -> QSize:
        y, widest, height = rect.y(), 0, 0
        for line in self._lines(rect.width()):
            y += _GAP if height else 0
            x, height = rect.x(), max(hint.height() for _, hint in line)
            for item, hint in line:
                if is_real:  # in the middle of its line
                    place = QPoint(x, y + (height - hint.height()) // 2)
                    item.setGeometry(QRect(place, hint))
                x += hint.width() + _GAP
            widest = max(widest, x - _GAP - rect.x())
            y += height
        return QSize(widest, y - rect.y())

    def _lines(self, width: int) -> list[list[tuple[QLayoutItem, QSize]]]:
        """The items of each line, with their sizes; a hidden one takes no room."""
        lines: list[list[tuple[QLayoutItem, QSize]]] = []
        taken = 0
        for item in self._shown():
            hint = item.sizeHint()
            if not lines or taken + hint.width() > width:
                lines.append([])
                taken = 0
            lines[-1].append((item, hint))
            taken += hint.width() + _GAP
        return lines
