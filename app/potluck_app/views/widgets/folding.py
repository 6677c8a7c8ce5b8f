"""Rows that fold: what would have too little room beside something goes below it."""

from collections.abc import Callable
from typing import Final

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtWidgets import QLayoutItem, QWidget

from potluck_app.views.widgets.placing import Placing, height_at

_GAP: Final = 8  # pixels between two parts of the row
_BELOW: Final = 8  # pixels between the row and what is below it


class Folding(Placing):
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
        self._lead = self._added(lead)
        self._text = self._added(text)
        self._beside = self._added(beside)
        self._tail = self._added(tail)

    def _added(self, widget: QWidget | None) -> QLayoutItem | None:
        if widget is None:
            return None
        self.addWidget(widget)
        return self._items[-1]

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation.Horizontal

    def sizeHint(self) -> QSize:
        return self._size_in_a_row(_GAP)

    def minimumSize(self) -> QSize:
        kept = sum(_taken(item) for item in (self._lead, self._tail))
        widths = [item.minimumSize().width() for item in self._shown()]
        return QSize(kept + max(widths, default=0), 0)

    def is_folded(self, width: int) -> bool:
        """Whether what belongs beside the text is below it at this width."""
        if self._beside is None or self._beside.isEmpty():
            return False
        taken = sum(_taken(item) for item in (self._lead, self._beside, self._tail))
        return width - taken < self._needs()

    def _place(self, rect: QRect, *, is_real: bool) -> QSize:
        is_folded = self.is_folded(rect.width())
        row = [self._lead, self._text, None if is_folded else self._beside, self._tail]
        height = self._place_row([item for item in row if item is not None], rect, is_real=is_real)
        if not is_folded or self._beside is None:
            return QSize(rect.width(), height)
        item, width = self._beside, min(self._beside.sizeHint().width(), rect.width())
        above = height + _BELOW if height else 0
        deep = height_at(item, width)
        if is_real:
            left = rect.right() + 1 - width if self._at_end else rect.left()
            item.setGeometry(QRect(left, rect.top() + above, width, deep))
        return QSize(rect.width(), above + deep)

    def _place_row(self, row: list[QLayoutItem], rect: QRect, *, is_real: bool) -> int:
        """Place what stands in the row; returns its height."""
        shown = [item for item in row if not item.isEmpty()]
        fixed = sum(_taken(item) for item in shown if item is not self._text)
        left_over = max(rect.width() - fixed, 0)
        widths = [
            left_over if item is self._text else min(item.sizeHint().width(), rect.width())
            for item in shown
        ]
        heights = [height_at(item, width) for item, width in zip(shown, widths, strict=True)]
        height = max(heights, default=0)
        left = rect.left()
        for item, width, own in zip(shown, widths, heights, strict=True):
            if is_real:
                down = 0 if self._at_top else (height - own) // 2
                item.setGeometry(QRect(left, rect.top() + down, width, own))
            left += width + _GAP
        return height


class Headed(Placing):
    """A state in a word or two, and its facts: beside it, or below it where they would have too little room.

    Args:
        head: keeps its own width, and stands at the top.
        facts: take the room that it leaves, or the whole row below it.
        needs: how many pixels the facts need beside the head.
        gap: pixels between the two, side by side.
        below: pixels between the two, one below the other.
    """

    def __init__(
        self,
        head: QWidget,
        facts: QWidget,
        needs: Callable[[], int],
        *,
        gap: int = 10,
        below: int = 4,
    ) -> None:
        super().__init__()
        self._needs, self._gap, self._below = needs, gap, below
        for each in (head, facts):
            self.addWidget(each)
        self._head, self._facts = self._items

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation.Horizontal

    def sizeHint(self) -> QSize:
        return self._size_in_a_row(self._gap)

    def minimumSize(self) -> QSize:
        return QSize(max((item.minimumSize().width() for item in self._shown()), default=0), 0)

    def is_folded(self, width: int) -> bool:
        """Whether the facts are below the head at this width."""
        if len(self._shown()) < 2:
            return False
        return width - self._head.sizeHint().width() - self._gap < self._needs()

    def _place(self, rect: QRect, *, is_real: bool) -> QSize:
        head, size = self._head, self._head.sizeHint()
        if head.isEmpty():
            size = QSize(-self._gap, 0)
        is_folded = self.is_folded(rect.width())
        across = 0 if is_folded else size.width() + self._gap
        down = size.height() + self._below if is_folded else self._lowered(size.height())
        room = QSize(rect.width() - across, 0)
        if not self._facts.isEmpty():
            room.setHeight(down + height_at(self._facts, room.width()))
        if is_real:
            head.setGeometry(
                QRect(rect.topLeft(), size.boundedTo(QSize(rect.width(), size.height())))
            )
            place = QRect(rect.topLeft(), QSize(rect.width(), room.height()))
            self._facts.setGeometry(place.adjusted(across, down, 0, 0))
        return QSize(rect.width(), max(size.height(), room.height()))

    def _lowered(self, height: int) -> int:
        """How far the facts stand below the top, so that their first line is in the middle of the head."""
        widget = self._facts.widget()
        line = widget.fontMetrics().height() if widget is not None else height
        return max((height - line) // 2, 0)


def _taken(item: QLayoutItem | None) -> int:
    """What a part takes of the width of the row, with the gap beside it."""
    return 0 if item is None or item.isEmpty() else item.sizeHint().width() + _GAP
