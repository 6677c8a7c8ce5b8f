"""Icons, from a checkout or from an installed wheel, tinted to the colour that the theme wants.

The set is monochrome SVG on a 24 px grid with a stroke of 1.75 px; black in the file is only a mask.
"""

from functools import lru_cache
from pathlib import Path

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

_INSTALLED = Path(__file__).parent / "_assets"  # where the wheel puts them
_CHECKOUT = Path(__file__).parents[2] / "assets"

_SCALES = (1.0, 2.0)  # one pixmap per device pixel ratio that screens have; Qt scales between them


def asset(*parts: str) -> Path:
    """The path of one file of `assets/`."""
    root = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    return root.joinpath(*parts)


@lru_cache(maxsize=512)
def pixmap(name: str, color: str, size: int, scale: float = 1.0, gap: int = 0) -> QPixmap:
    """One icon of the set in one colour, `size` logical pixels high, `gap` more wide."""
    picture = _render(name, round(size * scale), round(gap * scale))
    painter = QPainter(picture)
    painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_SourceIn)
    painter.fillRect(picture.rect(), QColor(color))
    painter.end()
    picture.setDevicePixelRatio(scale)
    return picture


@lru_cache(maxsize=512)
def icon(
    name: str, color: str, size: int = 20, *, disabled: str | None = None, gap: int = 0
) -> QIcon:
    """One icon of the set in one colour, and in another where its button is disabled."""
    result = QIcon()
    for scale in _SCALES:
        result.addPixmap(pixmap(name, color, size, scale, gap), QIcon.Mode.Normal)
        if disabled is not None:
            result.addPixmap(pixmap(name, disabled, size, scale, gap), QIcon.Mode.Disabled)
    return result


@lru_cache(maxsize=1)
def app_icon() -> QIcon:
    """The program's own mark, in its colours."""
    result = QIcon()
    for size in (16, 24, 32, 48, 64, 128, 256):
        result.addPixmap(_render("potluck", size))
    return result


def _render(name: str, pixels: int, gap: int = 0) -> QPixmap:
    renderer = QSvgRenderer(str(asset("icons", f"{name}.svg")))
    assert renderer.isValid(), f"no icon {name}"
    picture = QPixmap(pixels + gap, pixels)
    picture.fill(Qt.GlobalColor.transparent)
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    renderer.render(painter, QRectF(0, 0, pixels, pixels))
    painter.end()
    return picture
