"""What is wrong in a picture and can be measured: text that is cut or hard to read, widgets that stick out, overlap or are unlike those beside them."""

from collections.abc import Iterator
from itertools import combinations

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import (
    QAbstractButton,
    QFrame,
    QLabel,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QWidget,
)
from screenshots.contrast import contrast

from potluck_app.views.conversation.chat_sidebar import ChatSidebar
from potluck_app.views.conversation.drawer import Drawer
from potluck_app.views.widgets.enlarged import Enlarged
from potluck_app.views.widgets.focus import _Ring
from potluck_app.views.widgets.overlay import Shade

_NEAR = 1  # pixels that rounding costs
_LIES_OVER = (Shade, ChatSidebar, Drawer, Enlarged, _Ring)  # others, on purpose
# Of text and what is behind it. The guideline says 4.5; the edges of thin letters are drawn paler than they are.
_READABLE = 4.0


def faults(shown: QWidget, picture: QImage | None = None) -> list[str]:
    """Return what is wrong in a window, dialog or menu, each as one line.

    `picture`: how it looks, for what only its pixels tell.
    """
    seen = [w for w in shown.findChildren(QWidget) if w.isVisibleTo(shown)]
    seen = [widget for widget in seen if not widget.visibleRegion().isEmpty()]
    found = [f"{_name(widget)}: {why}" for widget in seen for why in _faults(widget)]
    for each in (shown, *seen):
        found += _together(each)
    if picture is not None:
        found += [line for widget in seen for line in _pale(widget, shown, picture)]
    return found


def _faults(widget: QWidget) -> Iterator[str]:
    parent = widget.parentWidget()
    is_text = isinstance(widget, QLabel | QAbstractButton)
    if is_text and parent is not None and not parent.rect().contains(_most(widget.geometry())):
        yield "sticks out"
    if isinstance(widget, QLabel) and widget.wordWrap():
        if widget.heightForWidth(widget.width()) > widget.height() + _NEAR:
            yield "lacks height"
    elif isinstance(widget, QLabel | QPushButton) and not _may_be_cut(widget):
        if widget.sizeHint().width() > widget.width() + _NEAR:
            yield "is cut"
    elif isinstance(widget, QScrollArea):
        inner = widget.widget()
        if inner is not None and inner.width() > widget.viewport().width():
            yield "is wider than its place"
    elif isinstance(widget, QFrame) and widget.property("card") == "true" and _is_too_high(widget):
        yield "is higher than what is in it"


def _together(parent: QWidget) -> Iterator[str]:
    """What is wrong with two widgets of one parent."""
    kind = Qt.FindChildOption.FindDirectChildrenOnly
    children = [w for w in parent.findChildren(QWidget, options=kind) if w.isVisible()]
    for one, other in combinations(children, 2):
        is_over = isinstance(one, _LIES_OVER) or isinstance(other, _LIES_OVER)
        shared = _most(one.geometry()) & _most(other.geometry())
        if not is_over and not shared.isEmpty():
            yield f"{_name(one)}: overlaps {_name(other)!r}"
    buttons = [child for child in children if isinstance(child, QPushButton)]
    for one, other in combinations(buttons, 2):
        if not _is_beside(one, other):
            continue
        if one.height() != other.height():
            yield f"{_name(one)}: is not as high as {_name(other)!r} beside it"
        if one.icon().isNull() != other.icon().isNull():
            with_icon, without = (other, one) if one.icon().isNull() else (one, other)
            yield f"{_name(with_icon)}: has an icon, and {without.text()!r} beside it has none"


def _pale(widget: QWidget, shown: QWidget, picture: QImage) -> Iterator[str]:
    """Whether the text of a widget is too much like what is behind it; one that is off or covered may be."""
    is_text = isinstance(widget, QLabel | QAbstractButton) and bool(widget.text())
    whole = widget.visibleRegion().boundingRect() == widget.rect()
    place = QRect(widget.mapTo(shown, widget.rect().topLeft()), widget.size())
    on_top = shown.childAt(place.center())
    if is_text and whole and widget.isEnabled() and on_top is widget:
        scale = picture.devicePixelRatio()
        pixels = QRect(place.topLeft() * scale, place.size() * scale)
        if (found := contrast(picture.copy(pixels))) < _READABLE:
            yield f"{_name(widget)}: has a contrast of {found:.1f}"


def _is_too_high(card: QFrame) -> bool:
    """Whether a card has room that nothing in it asks for, which would be between its lines."""
    layout = card.layout()
    if layout is None or not layout.hasHeightForWidth() or card.minimumHeight():
        return False
    parts = [layout.itemAt(number) for number in range(layout.count())]
    has_stretch = any(part is not None and part.spacerItem() is not None for part in parts)
    return not has_stretch and card.height() > layout.totalHeightForWidth(card.width()) + _NEAR


def _is_beside(one: QWidget, other: QWidget) -> bool:
    """Return whether two widgets of one parent stand in one row."""
    return one.y() < other.y() + other.height() and other.y() < one.y() + one.height()


def _may_be_cut(widget: QWidget) -> bool:
    """Return whether a widget has no width of its own: a line that ends in an ellipsis, a button around a text."""
    is_around = isinstance(widget, QPushButton) and not QPushButton.text(widget)
    return is_around or widget.sizePolicy().horizontalPolicy() == QSizePolicy.Policy.Ignored


def _most(place: QRect) -> QRect:
    """Return a rectangle without what rounding costs."""
    return place.adjusted(_NEAR, _NEAR, -_NEAR, -_NEAR)


def _name(widget: QWidget) -> str:
    text = widget.text() if isinstance(widget, QLabel | QAbstractButton) else ""
    return widget.objectName() or text or widget.accessibleName() or type(widget).__name__
