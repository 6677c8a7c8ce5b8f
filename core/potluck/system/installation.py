"""Which installation this is: a native package, or a Python environment.

A package has a file `potluck.json` beside its Python (`installers/native/tree.py` writes it). It is
started by the launchers beside that, since these keep Python's variables of other programs away.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["deb", "tar", "macos", "windows", "tree"]
_INFO: Final = "potluck.json"
_MOST_BYTES: Final = 65_536


class _Info(msgspec.Struct, frozen=True):
    version: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Package:
    """A native package that this process runs from."""

    tree: Path
    kind: Kind
    version: str

    def launcher(self, program: Literal["window", "worker"]) -> list[str] | None:
        """The words that start a program; None: Python itself does."""
        match self.kind:
            case "windows":
                return None  # its Python has no console, and no launcher
            case "macos" if program == "window":
                # The app itself: macOS gives permissions, such as that for the local network, to it.
                app = self.tree.parent.parent / "MacOS" / "Potluck"
                return [str(app), "--hidden"]
            case _:
                start = self.tree / "bin"
                if program == "window":
                    return [str(start / "potluck-window"), "--hidden"]
                return [str(start / "potluck"), "worker"]


def package(prefix: Path = Path(sys.prefix)) -> Package | None:
    """Return the package that this process runs from; None: it is none, or its file is damaged.

    Args:
        prefix: of the Python that runs.
    """
    tree = prefix.parent
    try:
        with (tree / _INFO).open("rb") as stream:
            info = msgspec.json.decode(stream.read(_MOST_BYTES), type=_Info)
    except (OSError, msgspec.MsgspecError):
        return None
    return Package(tree, info.kind, info.version)
