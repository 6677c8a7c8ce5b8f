"""A row whose second part goes below the first where that would have too little room."""

from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget

_GAP: Final = 8  # pixels between two parts of the row
_BELOW: Final = 8  # pixels between the row and what is below it


class Folding(QLayout):
    """A row: what leads it, a text that takes all that is left, what belongs beside it, and what ends it.

    A box whose direction changes has the right height for one width only. This one has it for each, so
    that nothing moves after it was shown.

    Args:
        text: takes the room that the others leave.
        beside: keeps its own width; it goes below the row where the text would have too little.
        needs: how many pixels the text needs in the row.
        lead: before the text, such as an icon.
        tail: at the end of the row, also where `beside` is below it.
        at_top: the parts stand at the top of the row, not in its middle.
        at_end: what is below stands at the right end, not at the left.
    """

    def __init__(
        self,
        text: QWidget,
        beside: QWidget,
        needs: Callable[[], int],
        *,
        lead: QWidget | None = None,
        tail: QWidget | None = None,
        at_top: bool = False,
        at_end: bool = False,
    ) -> None:
        super().__init__()
        self._needs, self._at_top, self._at_end = needs, at_top, at_end
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)
        self._lead = self._added(lead)
        self._text = self._added(text)
        self._beside = self._added(beside)
        self._tail = self._added(tail)

    def _added(self, widget: QWidget | None) -> QLayoutItem | None:
        if widget is None:
            return None
        self.addWidget(widget)
        return self._items[-1]

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:  # pyright: ignore[reportIncompatibleMethodOverride] - None ends
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation.Horizontal

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._place(QRect(0, 0, width, 0), is_real=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, is_real=True)

    def sizeHint(self) -> QSize:
        shown = [item.sizeHint() for item in self._items if not item.isEmpty()]
        width = sum(size.width() for size in shown) + _GAP * max(len(shown) - 1, 0)
        return QSize(width, max((size.height() for size in shown), default=0))

    def minimumSize(self) -> QSize:
        kept = sum(_taken(item) for item in (self._lead, self._tail))
        widths = [item.minimumSize().width() for item in self._items if not item.isEmpty()]
        return QSize(kept + max(widths, default=0), 0)

    def is_folded(self, width: int) -> bool:
        """Whether what belongs beside the text is below it at this width."""
        if self._beside is None or self._beside.isEmpty():
            return False
        taken = sum(_taken(item) for item in (self._lead, self._beside, self._tail))
        return width - taken < self._needs()

    def _place(self, rect: QRect, *, is_real: bool) -> int:
        """Place the items; returns the height that they take."""
        is_folded = self.is_folded(rect.width())
        row = [self._lead, self._text, None if is_folded else self._beside, self._tail]
        height = self._place_row([item for item in row if item is not None], rect, is_real=is_real)
        if not is_folded or self._beside is None:
            return height
        item, width = self._beside, min(self._beside.sizeHint().width(), rect.width())
        above = height + _BELOW if height else 0
        deep = _height(item, width)
        if is_real:
            left = rect.right() + 1 - width if self._at_end else rect.left()
            item.setGeometry(QRect(left, rect.top() + above, width, deep))
        return above + deep

    def _place_row(self, row: list[QLayoutItem], rect: QRect, *, is_real: bool) -> int:
        shown = [item for item in row if not item.isEmpty()]
        fixed = sum(_taken(item) for item in shown if item is not self._text)
        left_over = max(rect.width() - fixed, 0)
        widths = [
            left_over if item is self._text else min(item.sizeHint().width(), rect.width())
            for item in shown
        ]
        heights = [_height(item, width) for item, width in zip(shown, widths, strict=True)]
        height = max(heights, default=0)
        left = rect.left()
        for item, width, own in zip(shown, widths, heights, strict=True):
            if is_real:
                down = 0 if self._at_top else (height - own) // 2
                item.setGeometry(QRect(left, rect.top() + down, width, own))
            left += width + _GAP
        return height


def _taken(item: QLayoutItem | None) -> int:
    """What a part takes of the width of the row, with the gap beside it."""
    return 0 if item is None or item.isEmpty() else item.sizeHint().width() + _GAP


def _height(item: QLayoutItem, width: int) -> int:
    return item.heightForWidth(width) if item.hasHeightForWidth() else item.sizeHint().height()
