"""The pictures of the user's guides, app/GUIDE.md and GUIDE.de.md: which scenes, how wide, and how they become small."""

from pathlib import Path
from typing import Final

from PIL import Image
from screenshots.colours import in_few_colours

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
    return sum(
        write_picture(taken, f"{scene}-{ending}", folder / f"{scene}.png") for scene in SCENES
    )


def write_picture(taken: Path, begins: str, path: Path) -> int:
    """Write the picture whose name begins so, in few colours; returns its bytes.

    Raises:
        OSError: there is not one such picture, or it could not be written.
    """
    found = [*taken.glob(f"{begins}-*.png")]  # menus and dialogs choose their width
    if len(found) != 1:
        raise OSError(f"{len(found)} pictures {begins} are in {taken}, where one should be")
    with Image.open(found[0]) as picture:
        few = in_few_colours(picture.convert("RGB"))
    few.save(path, optimize=True)
    return path.stat().st_size
