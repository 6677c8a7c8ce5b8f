"""Rows and columns, written with their parts in the order in which they are seen."""

from typing import TypeAlias, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLayout, QVBoxLayout, QWidget

Part: TypeAlias = (
    QWidget
    | QLayout
    | int
    | tuple[QWidget | QLayout | None, int]
    | tuple[QWidget, int, Qt.AlignmentFlag]
)
"""A widget or a layout, perhaps with its stretch and its alignment; or pixels of space."""
STRETCH: Part = (None, 1)
"""Room that grows with the window."""
Margins: TypeAlias = int | tuple[int, int, int, int]
"""Pixels around all parts; four are clockwise from the left."""

_Box = TypeVar("_Box", QHBoxLayout, QVBoxLayout)


def vbox(
    *parts: Part, parent: QWidget | None = None, margins: Margins = 0, spacing: int = 0
) -> QVBoxLayout:
    """Make a column of these parts."""
    box = QVBoxLayout() if parent is None else QVBoxLayout(parent)
    return _filled(box, parts, margins, spacing)


def hbox(
    *parts: Part, parent: QWidget | None = None, margins: Margins = 0, spacing: int = 0
) -> QHBoxLayout:
    """Make a row of these parts."""
    box = QHBoxLayout() if parent is None else QHBoxLayout(parent)
    return _filled(box, parts, margins, spacing)


def _filled(box: _Box, parts: tuple[Part, ...], margins: Margins, spacing: int) -> _Box:
    left, top, right, bottom = (margins,) * 4 if isinstance(margins, int) else margins
    box.setContentsMargins(left, top, right, bottom)
    box.setSpacing(spacing)
    for part in parts:
        match part:
            case int():
                box.addSpacing(part)
            case QWidget():
                box.addWidget(part)
            case QLayout():
                box.addLayout(part)
            case (None, stretch):
                box.addStretch(stretch)
            case (QLayout() as layout, stretch):
                box.addLayout(layout, stretch)
            case (QWidget() as widget, stretch):
                box.addWidget(widget, stretch)
            case (QWidget() as widget, stretch, alignment):
                box.addWidget(widget, stretch, alignment)
    return box


class WidthLimit(QWidget):
    """Centres a widget and limits its width."""

    def __init__(self, content: QWidget, width: int) -> None:
        super().__init__()
        content.setMaximumWidth(width)
        hbox(STRETCH, (content, 1000), STRETCH, parent=self)
