"""Take the pictures of all scenes at the scale of this process."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QApplication, QMainWindow
from screenshots.scenes import SCENES
from screenshots.stage import Stage

from potluck_app.language import use
from potluck_app.theme import Choice

HEIGHTS = {480: 720, 768: 1024, 1180: 760, 1920: 1080}
"""The height of the window for each width, in logical pixels."""


def take(
    qapp: QApplication,
    folder: Path,
    names: Iterable[str],
    themes: Iterable[Choice],
    widths: Iterable[int],
    language: str,
) -> None:
    """Write the pictures, as SCREEN-STATE-THEME-SCALE-WIDTH.png.

    Args:
        qapp: the application.
        folder: where they go.
        names: of the scenes.
        themes: light, dark.
        widths: of the main window, in logical pixels. All else chooses its width itself, and has
            one picture.
        language: the code of a language, such as "de".

    Raises:
        OSError: a picture could not be written.
    """
    use(qapp, language)
    sizes = [QSize(width, HEIGHTS.get(width, 760)) for width in widths]
    for theme in themes:
        for name in names:
            for size in sizes:
                if not _take(qapp, folder, name, theme, size):
                    break


def _take(qapp: QApplication, folder: Path, name: str, theme: Choice, size: QSize) -> bool:
    """Write the picture of one scene. Returns whether another size gives another picture."""
    with tempfile.TemporaryDirectory() as work:
        stage = Stage(qapp, Path(work), theme, size)
        shown = SCENES[name](stage)
        stage.settle()
        picture = shown.grab()
        scale = round(100 * picture.devicePixelRatio())
        width = round(picture.deviceIndependentSize().width())
        path = folder / f"{name}-{theme}-{scale}-{width}.png"
        if not picture.save(str(path)):
            raise OSError(f"{path} could not be written")
        is_main = isinstance(shown, QMainWindow)
        stage.strike()
    return is_main
