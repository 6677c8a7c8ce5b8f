"""Paths that are longer than Windows takes in its usual form: 260 characters, with the user's own folder."""

import sys
from pathlib import Path
from typing import Final

_VERBATIM: Final = "\\\\?\\"  # learn.microsoft.com: "Maximum Path Length Limitation"


def of_any_length(path: Path, *, system: str = sys.platform) -> Path:
    """The same file or folder, by a path that may be of any length. For files that are written and deleted.

    Libraries are loaded by the usual path: the loader of Windows does not take this form everywhere.

    Args:
        path: of the file or folder.
        system: as in `sys.platform`; on others than Windows, the path is as it was.
    """
    return type(path)(verbatim(str(path.absolute()))) if system == "win32" else path


def verbatim(path: str) -> str:
    r"""An absolute path of Windows in the form that is not looked at: `\\?\C:\…`, `\\?\UNC\server\…`."""
    if path.startswith(_VERBATIM):
        return path
    if path.startswith("\\\\"):
        return f"{_VERBATIM}UNC\\{path[2:]}"
    return f"{_VERBATIM}{path}"
