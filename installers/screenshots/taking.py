"""Take the pictures of all scenes, and write the page that shows them."""

import tempfile
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path

from PySide6.QtWidgets import QApplication, QMainWindow, QWidget
from screenshots.scenes import SCENES
from screenshots.stage import Stage, settle

from potluck_app.theme import Choice

HEIGHTS = {480: 720, 768: 1024, 1180: 760, 1920: 1080}
"""The height of the window for each width, in logical pixels."""


def take(
    qapp: QApplication,
    folder: Path,
    names: Iterable[str],
    themes: Iterable[Choice],
    widths: Iterable[int],
) -> None:
    """Write the pictures at the scale of this process, as SCREEN-STATE-THEME-SCALE-WIDTH.png.

    Args:
        qapp: the application.
        folder: where they go.
        names: of the scenes.
        themes: light, dark.
        widths: of the main window, in logical pixels. Dialogs have the width that they choose.

    Raises:
        OSError: a picture could not be written.
    """
    scale = round(100 * qapp.devicePixelRatio())
    for theme in themes:
        for name in names:
            with tempfile.TemporaryDirectory() as work:
                stage = Stage(qapp, Path(work), theme)
                shown = SCENES[name](stage)
                for _ in _sizes(shown, widths):
                    picture = shown.grab()
                    width = round(picture.deviceIndependentSize().width())
                    path = folder / f"{name}-{theme}-{scale}-{width}.png"
                    if not picture.save(str(path)):
                        raise OSError(f"{path} could not be written")
                stage.strike()


def _sizes(shown: QWidget, widths: Iterable[int]) -> Iterator[None]:
    """Give a main window each width in turn; all else has one size, its own."""
    shown.ensurePolished()
    settle()
    if not isinstance(shown, QMainWindow):
        yield
        return
    for width in widths:
        shown.resize(width, HEIGHTS.get(width, 760))
        settle()
        yield


def write_index(folder: Path) -> Path:
    """Write a page with all pictures of a folder, a row for each scene. Returns its path."""
    rows: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*-*-*-*.png")):
        name = path.stem.rsplit("-", 3)[0]
        text = escape(path.stem)
        rows.setdefault(name, []).append(
            f'<a href="{text}.png"><img src="{text}.png" alt="{text}" loading="lazy"></a>'
        )
    body = "".join(
        f"<h2>{escape(name)}</h2><div>{''.join(pictures)}</div>" for name, pictures in rows.items()
    )
    style = (
        "body{font:14px sans-serif;background:#888}div{display:flex;gap:8px;overflow-x:auto}"
        "img{height:300px}"
    )
    page = folder / "index.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><title>Potluck</title><style>{style}</style>{body}',
        encoding="utf-8",
    )
    return page
