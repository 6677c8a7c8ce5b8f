"""Icons from a checkout or an installed wheel, in the colour that the theme asks for.

The icons are monochrome SVG on a 24 px grid with a stroke of 1.75 px; black in the file is only a
mask.
"""

from functools import lru_cache
from pathlib import Path

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication

_INSTALLED = Path(__file__).parent / "_assets"  # the wheel puts the files there
_CHECKOUT = Path(__file__).parents[2] / "assets"

_SCALES = (1.0, 2.0)  # a pixmap for each common device pixel ratio; Qt scales between them


def asset(*parts: str) -> Path:
    """Return the path of a file in `assets/`."""
    root = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT
    return root.joinpath(*parts)


@lru_cache(maxsize=512)
def pixmap(
    name: str, color: str, size: int, scale: float = 1.0, gap: int = 0, cut: int = 0
) -> QPixmap:
    """Draw an icon in one colour, `size` logical pixels high, and wider than high by `gap`.

    `cut` pixels are left out on both sides: those of a narrow sign that are empty.
    """
    picture = QPixmap(_render(name, round(size * scale), round(gap * scale), round(cut * scale)))
    painter = QPainter(picture)
    painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_SourceIn)
    painter.fillRect(picture.rect(), QColor(color))
    painter.end()
    picture.setDevicePixelRatio(scale)
    return picture


@lru_cache(maxsize=512)
def icon(
    name: str,
    color: str,
    size: int = 20,
    *,
    disabled: str | None = None,
    gap: int = 0,
    cut: int = 0,
) -> QIcon:
    """Return an icon in one colour, and in another colour for disabled buttons."""
    result = QIcon()
    for scale in _SCALES:
        result.addPixmap(pixmap(name, color, size, scale, gap, cut), QIcon.Mode.Normal)
        if disabled is not None:
            result.addPixmap(pixmap(name, disabled, size, scale, gap, cut), QIcon.Mode.Disabled)
    return result


@lru_cache(maxsize=1)
def app_icon() -> QIcon:
    """Return the icon of the program, in its own colours."""
    result = QIcon()
    for size in (16, 24, 32, 48, 64, 128, 256):
        result.addPixmap(_render("potluck", size))
    return result


def introduce(program: QApplication) -> None:
    """Tell the desktop which program this is, and that it may go on without a window."""
    program.setApplicationName("Potluck")
    program.setDesktopFileName("potluck")
    program.setWindowIcon(app_icon())
    program.setQuitOnLastWindowClosed(False)


@lru_cache(maxsize=128)
def _render(name: str, pixels: int, gap: int = 0, cut: int = 0) -> QPixmap:
    renderer = QSvgRenderer(str(asset("icons", f"{name}.svg")))
    assert renderer.isValid(), f"no icon {name}"
    picture = QPixmap(pixels + gap - 2 * cut, pixels)
    picture.fill(Qt.GlobalColor.transparent)
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    renderer.render(painter, QRectF(-cut, 0, pixels, pixels))
    painter.end()
    return picture
