"""What our own layouts share: they keep their items in order, and have the right height for each width."""

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget


class Placing(QLayout):
    """A layout that places its items by the width that it gets; how, says `_place`."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._items: list[QLayoutItem] = []
        self.setContentsMargins(0, 0, 0, 0)

    def _place(self, rect: QRect, *, is_real: bool) -> QSize:
        """Return the size that the items take in a place so wide; if `is_real`, place them there."""
        raise NotImplementedError

    def size_within(self, width: int) -> QSize:
        """What the items take where there is so much room."""
        return self._place(QRect(0, 0, width, 0), is_real=False)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:  # pyright: ignore[reportIncompatibleMethodOverride] - None ends
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self.size_within(width).height()

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, is_real=True)

    def _shown(self) -> list[QLayoutItem]:
        """The items that are not hidden."""
        return [item for item in self._items if not item.isEmpty()]

    def _size_in_a_row(self, gap: int) -> QSize:
        """What the items take side by side, with so many pixels between two of them."""
        sizes = [item.sizeHint() for item in self._shown()]
        width = sum(size.width() for size in sizes) + gap * max(len(sizes) - 1, 0)
        return QSize(width, max((size.height() for size in sizes), default=0))


def height_at(item: QLayoutItem, width: int) -> int:
    """How high an item is in a place so wide."""
    return item.heightForWidth(width) if item.hasHeightForWidth() else item.sizeHint().height()
