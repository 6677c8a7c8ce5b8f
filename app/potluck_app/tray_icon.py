"""The icon in the tray: that of the program, with a mark for what this computer does."""

import sys
from typing import Literal, TypeAlias

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap

from potluck_app import resources
from potluck_app.tokens import Tokens

Mark: TypeAlias = Literal["idle", "busy", "paused", "error"]

_SIZES = (16, 22, 24, 32, 48, 64)  # of the trays that there are, also on dense screens
_PART = 0.58  # of the width of the icon: a mark has to be seen at 16 pixels


def icon_for(mark: Mark, tokens: Tokens, *, system: str = sys.platform) -> QIcon:
    """Return what the tray shows.

    Args:
        mark: what this computer does.
        tokens: the colours.
        system: as in `sys.platform`. macOS gives the shape of it the colour of its menu bar.
    """
    if system != "darwin":
        return marked(resources.app_icon(), mark, tokens)
    mask = marked(resources.icon("tray", "#000000", 22), mark, tokens, is_mask=True)
    mask.setIsMask(True)
    return mask


def marked(icon: QIcon, mark: Mark, tokens: Tokens, *, is_mask: bool = False) -> QIcon:
    """Return an icon with a mark at its lower right: a dot, two bars, or an exclamation mark.

    Args:
        icon: of the program.
        mark: what this computer does; "idle" has no mark.
        tokens: the colours.
        is_mask: the system gives the icon its colour, as macOS does: only its shape counts.
    """
    if mark == "idle":
        return icon
    result = QIcon()
    for size in _SIZES:
        result.addPixmap(_marked(icon.pixmap(size, size), mark, tokens, is_mask=is_mask))
    return result


def _marked(picture: QPixmap, mark: Mark, tokens: Tokens, *, is_mask: bool) -> QPixmap:
    picture.setDevicePixelRatio(1)
    width = picture.width()
    side = round(width * _PART)
    place = QRectF(width - side, width - side, side, side)
    colors = {"busy": tokens.accent, "paused": tokens.warn, "error": tokens.err}
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    if is_mask:
        painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_Clear)
        painter.drawEllipse(place)
        painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_SourceOver)
    else:
        painter.setBrush(QColor(tokens.surface))
        painter.drawEllipse(place)
    ink = QColor("#000000") if is_mask else QColor(colors[mark])
    painter.setBrush(ink)
    inner = place.adjusted(side * 0.1, side * 0.1, -side * 0.1, -side * 0.1)
    _draw(painter, mark, inner)
    painter.end()
    return picture


def _draw(painter: QPainter, mark: Mark, place: QRectF) -> None:
    width, height = place.width(), place.height()
    if mark == "busy":
        painter.drawEllipse(place.adjusted(width * 0.1, width * 0.1, -width * 0.1, -width * 0.1))
        return
    bar = width * 0.26
    if mark == "paused":
        for left in (place.left() + width * 0.16, place.right() - width * 0.16 - bar):
            painter.drawRect(QRectF(left, place.top() + height * 0.1, bar, height * 0.8))
        return
    middle = place.center().x()
    painter.drawRect(QRectF(middle - bar / 2, place.top(), bar, height * 0.62))
    painter.drawEllipse(QPointF(middle, place.bottom() - bar * 0.55), bar * 0.6, bar * 0.6)
