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
VERSIONS: Final = "versions"  # folder of the trees of a .tar.xz that was installed
CURRENT: Final = "tree"  # link beside it to the one in use
_INFO: Final = "potluck.json"
_MOST_BYTES: Final = 65_536


class Updates(msgspec.Struct, frozen=True):
    """Where newer versions are told of, and whose word counts; both empty where nobody publishes them."""

    index: str = ""  # address of `release.json`
    keys: tuple[str, ...] = ()  # Ed25519 public keys in base64


_NO_UPDATES: Final = Updates()


class _Info(msgspec.Struct, frozen=True):
    version: str
    kind: Kind
    updates: Updates = Updates()


@dataclass(frozen=True, slots=True)
class Package:
    """A native package that this process runs from.

    Attributes:
        tree: the folder with Python and Potluck.
        root: with `versions/`, and the link `tree` to the version in use; None: it is not installed so.
    """

    tree: Path
    kind: Kind
    version: str
    updates: Updates = _NO_UPDATES

    @property
    def root(self) -> Path | None:
        if self.kind == "tar" and self.tree.parent.name == VERSIONS:
            return self.tree.parent.parent
        return None

    @property
    def stable(self) -> Path:
        """A path of the tree that leads to a newer one after an update."""
        return self.tree if self.root is None else self.root / CURRENT

    def launcher(
        self, program: Literal["window", "worker"], *, hidden: bool = True
    ) -> list[str] | None:
        """The words that start a program, the window in the tray unless it is to be seen; None: Python itself does."""
        there = ["--hidden"] if hidden else []
        match self.kind:
            case "windows":
                return None  # its Python has no console, and no launcher
            case "macos" if program == "window":
                # The app itself: macOS gives permissions, such as that for the local network, to it.
                app = self.tree.parent.parent / "MacOS" / "Potluck"
                return [str(app), *there]
            case _:
                start = self.stable / "bin"
                if program == "window":
                    return [str(start / "potluck-window"), *there]
                return [str(start / "potluck"), "worker"]


def package(prefix: Path = Path(sys.prefix)) -> Package | None:
    """Return the package that this process runs from; None: it is none, or its file is damaged.

    Args:
        prefix: of the Python that runs.
    """
    tree = prefix.parent.resolve()
    try:
        with (tree / _INFO).open("rb") as stream:
            info = msgspec.json.decode(stream.read(_MOST_BYTES), type=_Info)
    except (OSError, msgspec.MsgspecError):
        return None
    return Package(tree, info.kind, info.version, info.updates)
