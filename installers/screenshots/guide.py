"""The pictures of the user's guides, app/GUIDE.md and GUIDE.de.md: which scenes, how wide, and how they become small."""

from pathlib import Path
from typing import Final

from PIL import Image

SCENES: Final = (
    *("first", "engine-missing", "cluster-alone", "cluster-first-found", "worker-asked"),
    *("chat-empty", "chat", "chat-writing", "chat-edit", "chat-versions", "chat-files"),
    *("chat-picture", "chat-formulas", "chat-thoughts", "chat-lost"),
    *("chat-search", "chat-find", "chat-list-menu", "chat-options", "chat-presets", "chat-full"),
    *("models-discover", "models-sizes", "models-queue", "models-here", "models-add"),
    "chat-models",
    *("cluster", "cluster-menu", "cluster-limit", "cluster-make-main", "cluster-add-token"),
    *("worker", "worker-pauses", "worker-rules", "worker-withheld", "tray"),
    *("settings", "settings-middle", "settings-programs", "settings-about"),
    *("cluster-nothing-found", "cluster-doctor", "chat-shortcuts"),
)
"""In the order of the guide. No dialog for files: it shows the folders of whoever takes the pictures."""
WIDTH: Final = 980  # logical pixels of the main window: a page shows it hardly smaller
_ASSETS: Final = Path(__file__).resolve().parents[2] / "assets"
FOLDERS: Final = {"en": _ASSETS / "guide-pictures", "de": _ASSETS / "guide-pictures-de"}
"""Where the pictures of each language are."""
_COLOURS = 256


def write_pictures(taken: Path, folder: Path, ending: str) -> int:
    """Write SCENE.png for each scene of the guide, and delete pictures of others; returns their bytes.

    Args:
        taken: where the pictures of the scenes are.
        folder: where those of the guide go.
        ending: of the names of the pictures after the scene, without the width, such as "light-100".

    Raises:
        OSError: a picture is not there, or could not be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        if old.stem not in SCENES:
            old.unlink()
    return sum(_write(taken, folder / f"{scene}.png", ending) for scene in SCENES)


def _write(taken: Path, path: Path, ending: str) -> int:
    found = [*taken.glob(f"{path.stem}-{ending}-*.png")]  # menus and dialogs choose their width
    if len(found) != 1:
        raise OSError(f"{len(found)} pictures of {path.stem} are in {taken}, where one should be")
    with Image.open(found[0]) as picture:
        few = picture.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    return path.stat().st_size
