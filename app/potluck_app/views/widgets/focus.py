"""Where the keyboard is: the order of the Tab key, and a ring around what has the focus."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import shiboken6
from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QGuiApplication, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QApplication,
    QLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QToolButton,
    QWidget,
)

from potluck_app.language import said
from potluck_app.theme import Theme

_OFFSET, _WIDTH = 2, 2  # pixels between a widget and its ring, and of the ring
_OUTSIDE = _OFFSET + _WIDTH
_BETWEEN = 8  # pixels between the icon and the words of a button, and at its sides
_MOVES = (QEvent.Type.Move, QEvent.Type.Resize, QEvent.Type.Hide)
# Their rings are in the style sheet, but for buttons in a line with text: those have no border.
_STYLED = (QPushButton, QToolButton, QLineEdit)


def tab_stops(layout: QLayout) -> Iterator[QWidget]:
    """The widgets of a layout that the Tab key reaches, in the order in which they are seen."""
    for place in range(layout.count()):
        item = layout.itemAt(place)
        if item is None:
            continue
        inner, widget = item.layout(), item.widget()
        if widget is not None:
            if widget.focusPolicy() & Qt.FocusPolicy.TabFocus:
                yield widget
            inner = widget.layout()
        if inner is not None:
            yield from tab_stops(inner)


def chain_tabs(stops: Sequence[QWidget]) -> None:
    """Let the Tab key go through these widgets in this order."""
    for before, after in pairwise(stops):
        QWidget.setTabOrder(before, after)


class FocusRing(QObject):
    """Draws a ring around what the keyboard has reached, where the style sheet draws none.

    What was clicked has no ring: the person knows where that is.
    """

    def __init__(self, theme: Theme, app: QApplication, parent: QObject) -> None:
        super().__init__(parent)
        self._theme = theme
        self._ring: _Ring | None = None
        app.focusChanged.connect(self._on_focus)

    @property
    def around(self) -> QWidget | None:
        """What has the ring now."""
        return self._ring.target if self._ring is not None else None

    def _on_focus(self, _old: QWidget | None, new: QWidget | None) -> None:
        if self._ring is not None and shiboken6.isValid(self._ring):
            self._ring.drop()
        self._ring = None
        is_clicked = QGuiApplication.mouseButtons() != Qt.MouseButton.NoButton
        if new is not None and not is_clicked and _needs_ring(new):
            self._ring = _Ring(self._theme, new)


def _needs_ring(widget: QWidget) -> bool:
    if isinstance(widget, QAbstractItemView):
        return not widget.currentIndex().isValid()  # else the row has one
    is_field = widget.property("kind") == "field" or widget.property("ring") == "own"
    is_stop = bool(widget.focusPolicy() & Qt.FocusPolicy.TabFocus)
    is_styled = isinstance(widget, _STYLED) and widget.property("kind") != "inline"
    return is_stop and not is_field and not is_styled


class _Ring(QWidget):
    """The ring around one widget, which it follows."""

    def __init__(self, theme: Theme, target: QWidget) -> None:
        host, followed = target, []
        while not _scrolls(host) and (above := host.parentWidget()) and not host.isWindow():
            followed.append(host)
            host = above
        super().__init__(host)
        self._theme, self.target, self._host = theme, target, host
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        for widget in followed:
            widget.installEventFilter(self)
        self._follow()
        self.show()

    def drop(self) -> None:
        self.hide()
        self.deleteLater()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        # A window that is deleted first hides what is in it, some of which is gone already.
        if event.type() in _MOVES and all(map(shiboken6.isValid, (self, self.target, self._host))):
            self._follow()
        return False

    def _follow(self) -> None:
        corner = self.target.mapTo(self._host, QPoint(0, 0))
        out = _OUTSIDE
        place = _seen(self.target).translated(corner).adjusted(-out, -out, out, out)
        self.setGeometry(place.intersected(self._host.rect()))
        self.setVisible(self.target.isVisible())
        self.raise_()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._theme.tokens.accent), _WIDTH))
        half = _WIDTH / 2
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(half, half, -half, -half), 6, 6)
        painter.end()


def _seen(widget: QWidget) -> QRect:
    """The part of a widget that is seen: a button in a line with text has room behind it."""
    shown = widget.rect()
    if isinstance(widget, QToolButton) and widget.property("kind") == "inline":
        words = widget.fontMetrics().horizontalAdvance(said(widget.text()))
        shown.setWidth(min(shown.width(), widget.iconSize().width() + words + _BETWEEN))
    return shown


def _scrolls(widget: QWidget) -> bool:
    """Whether this is the page that a QScrollArea moves: a ring on it moves along."""
    viewport = widget.parentWidget()
    area = viewport.parentWidget() if viewport is not None else None
    return isinstance(area, QScrollArea) and area.widget() is widget
