"""A panel at the edge of a page: beside the page's content, or over it where there is no room."""

from collections.abc import Callable

from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QBoxLayout, QWidget

_DIM = QColor(0, 0, 0, 90)


class Shade(QWidget):
    """Dims what lies under an open panel. A click on it closes the panel."""

    def __init__(self, parent: QWidget, on_click: Callable[[], object]) -> None:
        super().__init__(parent)
        self._on_click = on_click
        self.hide()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._on_click()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), _DIM)
        painter.end()


class SidePanel:
    """Places a panel at the left or the right edge of a page.

    Args:
        page: has the row of the panel and the content.
        row: the layout of the page.
        panel: is shown and hidden by its owner, who then calls `place`.
        width: returns that of the panel, in pixels, which grows with the text.
        on_close: a click beside the panel that lies over the content.
    """

    def __init__(
        self,
        page: QWidget,
        row: QBoxLayout,
        panel: QWidget,
        width: Callable[[], int],
        on_close: Callable[[], object],
    ) -> None:
        self._page, self._row, self._panel, self._width = page, row, panel, width
        self._is_left = row.indexOf(panel) == 0
        self._shade = Shade(page, on_close)
        panel.setFixedWidth(width())

    @property
    def is_over(self) -> bool:
        """Whether the panel lies over the content."""
        return self._row.indexOf(self._panel) < 0

    def place(self, *, is_over: bool) -> None:
        """Put the panel beside the content or over it."""
        if is_over and not self.is_over:
            self._row.removeWidget(self._panel)
        elif not is_over and self.is_over:
            self._row.insertWidget(0 if self._is_left else self._row.count(), self._panel)
        self._shade.setVisible(is_over and not self._panel.isHidden())
        if is_over:
            whole = self._page.rect()
            width = min(self._width(), whole.width() - 40)
            self._panel.setFixedWidth(width)
            left = 0 if self._is_left else whole.width() - width
            self._shade.setGeometry(whole)
            self._shade.raise_()
            self._panel.setGeometry(left, 0, width, whole.height())
            self._panel.raise_()
        else:
            self._panel.setFixedWidth(self._width())
