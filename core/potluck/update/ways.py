"""How this installation gets a newer version: by itself, or in the system's way."""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from potluck.system.installation import Kind, Package
from potluck.update.versions import Versions

Way: TypeAlias = Literal["itself", "package", "manual"]
"""`itself`: Potluck replaces it. `package`: its file is fetched and verified, and its owner installs it. `manual`:
nothing is fetched."""

_KINDS: Final[dict[Kind, Way]] = {"tar": "itself", "deb": "package"}
CHECKOUT: Final = (
    "This Potluck runs from a checkout or an environment of your own. Update it there: git pull, or pip install"
    " --upgrade potluck."
)
OLD_FOLDER: Final = (
    "This Potluck was installed by hand or by an older installer, so it cannot replace itself. Download the newest"
    " version once, and run its install.sh."
)
NOT_YOURS: Final = "The folder of this Potluck belongs to somebody else, so it cannot replace itself. Who installed it updates it."
NO_RELEASES: Final = (
    "This package does not say where newer versions are, or whose signature they have, so it cannot look for them."
    " It was not made by a release."
)


def way(installed: Package | None) -> tuple[Way, str]:
    """How an installation is updated, and a sentence if it cannot be from here."""
    if installed is None:
        return "manual", CHECKOUT
    if not (installed.updates.index and installed.updates.keys):
        return "manual", NO_RELEASES
    if installed.kind == "tar":
        versions = Versions.of(installed)
        if versions is None:
            return "manual", OLD_FOLDER
        return ("itself", "") if versions.is_writable() else ("manual", NOT_YOURS)
    return _KINDS.get(installed.kind, "package"), ""


def place(file: Path, folder: Path, name: str) -> Path:
    """Give a package its name in a folder, so that its owner can open it. Those of other versions are deleted."""
    placed = folder / name
    for left in folder.glob("[!.]*"):
        if left.suffix != ".json":
            with suppress(OSError):  # Windows keeps what its owner has open
                left.unlink()
    try:
        os.link(file, placed)
    except OSError:  # a disk without links
        shutil.copyfile(file, placed)
    return placed


def how_to_install(kind: Kind, file: Path) -> str:
    """What its owner does with a package that was fetched and verified."""
    match kind:
        case "deb":
            return f"The package is here, and verified. Install it with: sudo apt install {file}"
        case "macos":
            return f"The new version is here, and verified. Open {file}, and move Potluck into the folder Applications."
        case _:
            return f"The installer is here, and verified. Open {file}; it replaces this version."
