"""What is wrong in a picture and can be measured: text that is cut, widgets that stick out, a button unlike those beside it."""

from collections.abc import Iterator

from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QLabel,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QWidget,
)

_NEAR = 1  # pixels that rounding costs


def faults(shown: QWidget) -> list[str]:
    """Return what is wrong in a window, dialog or menu, each as one line."""
    found: list[str] = []
    for widget in shown.findChildren(QWidget):
        if widget.isVisibleTo(shown) and not widget.visibleRegion().isEmpty():
            found += [f"{_name(widget)}: {why}" for why in _faults(widget)]
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
    if isinstance(widget, QPushButton) and parent is not None and _has_icon(widget):
        for other in parent.findChildren(
            QPushButton, options=Qt.FindChildOption.FindDirectChildrenOnly
        ):
            if other.isVisible() and _is_beside(widget, other) and not _has_icon(other):
                yield f"has an icon, and {other.text()!r} beside it has none"


def _has_icon(button: QPushButton) -> bool:
    return not button.icon().isNull()


def _is_beside(one: QWidget, other: QWidget) -> bool:
    """Return whether two widgets of one parent stand in one row."""
    return one.y() < other.y() + other.height() and other.y() < one.y() + one.height()


def _may_be_cut(widget: QWidget) -> bool:
    """Return whether a widget has no width of its own, such as a line that ends in an ellipsis."""
    return widget.sizePolicy().horizontalPolicy() == QSizePolicy.Policy.Ignored


def _most(place: QRect) -> QRect:
    """Return a rectangle without what rounding costs."""
    return place.adjusted(_NEAR, _NEAR, -_NEAR, -_NEAR)


def _name(widget: QWidget) -> str:
    text = widget.text() if isinstance(widget, QLabel | QAbstractButton) else ""
    return widget.objectName() or text or widget.accessibleName() or type(widget).__name__
