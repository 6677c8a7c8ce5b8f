"""The pictures of the README: which scenes, in both looks, and the animation of the first minute."""

from pathlib import Path
from typing import Final

from screenshots.film import FILE, FRAMES, write_film
from screenshots.guide import write_picture

SCENES: Final = ("chat", "cluster")
WIDTH: Final = 1180  # logical pixels of the main window
FOLDER: Final = Path(__file__).resolve().parents[2] / "assets" / "screenshots"
ALL: Final = tuple(dict.fromkeys((*SCENES, *(scene for scene, _ in FRAMES))))


def write_pictures(taken: Path, folder: Path) -> int:
    """Write SCENE-THEME.png for each scene, and the animation; returns their bytes.

    Raises:
        OSError: a picture is not there, or could not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    themes = ("light", "dark")
    shown = [
        (f"{scene}-{theme}-100", f"{scene}-{theme}.png") for scene in SCENES for theme in themes
    ]
    nbytes = sum(write_picture(taken, begins, folder / name) for begins, name in shown)
    film = (folder / FILE).write_bytes(write_film(taken, f"light-100-{WIDTH}").read_bytes())
    return nbytes + film
