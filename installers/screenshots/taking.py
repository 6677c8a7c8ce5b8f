"""Take the pictures of all scenes at the scale of this process."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QApplication, QMainWindow
from screenshots.faults import faults
from screenshots.scenes import SCENES
from screenshots.stage import Stage

from potluck_app.language import use
from potluck_app.theme import Choice, Theme

HEIGHTS = {480: 560, 768: 1024, 1180: 760, 1920: 1080}
"""The height of the window for each width, in logical pixels."""


def take(
    qapp: QApplication,
    folder: Path,
    names: Iterable[str],
    themes: Iterable[Choice],
    widths: Iterable[int],
    language: str,
    text_size: int,
) -> list[str]:
    """Write the pictures, as SCREEN-STATE-THEME-SCALE-WIDTH.png. Returns what is cut in them.

    Args:
        qapp: the application.
        folder: where they go.
        names: of the scenes.
        themes: light, dark.
        widths: of the main window, in logical pixels. All else chooses its width itself, and has
            one picture.
        language: the code of a language, such as "de".
        text_size: of running text, in pixels.

    Raises:
        OSError: a picture could not be written.
    """
    use(qapp, language)
    qapp.setCursorFlashTime(0)  # the same picture each time
    sizes = [QSize(width, HEIGHTS.get(width, 760)) for width in widths]
    found: list[str] = []
    for theme in themes:
        look = Theme(qapp, theme, text_size)
        for name in names:
            for size in sizes:
                path, cut, is_main = _take(folder, name, look, size)
                found += [f"{path.stem}: {each}" for each in cut]
                if not is_main:
                    break
    return found


def _take(folder: Path, name: str, theme: Theme, size: QSize) -> tuple[Path, list[str], bool]:
    """Write the picture of one scene. Returns its path, what is cut, and whether it is a main window."""
    with tempfile.TemporaryDirectory() as work:
        stage = Stage(theme, Path(work), size)
        shown = SCENES[name].make(stage)
        stage.settle()
        picture = shown.grab()
        scale = round(100 * picture.devicePixelRatio())
        width = round(picture.deviceIndependentSize().width())
        path = folder / f"{name}-{theme.choice}-{scale}-{width}.png"
        if not picture.save(str(path)):
            raise OSError(f"{path} could not be written")
        result = path, faults(shown, picture.toImage()), isinstance(shown, QMainWindow)
        stage.strike()
    return result
