"""A version that its owner brought as a file: whether it is to be used, and putting it beside the one in use.

    python -m potluck.update.carried wants VERSION         status 1 if the version in use stays
    python -m potluck.update.carried take FOLDER VERSION   its tree is moved here, tried, and used from the next start on

The AppImage asks the program that is installed (installers/native/files/AppRun).
"""

import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from potluck.errors import PotluckError, StoreError, UsageError
from potluck.reasons import reason
from potluck.update.trial import try_version
from potluck.update.versions import Versions, is_newer
from potluck.update.ways import NOT_YOURS, OLD_FOLDER


def is_wanted(versions: Versions, version: str) -> bool:
    """Whether a version is newer than the one in use, and is not the one that was left for it."""
    failed = versions.failed
    left = failed.version if failed is not None else ""
    return is_newer(version, versions.current) and version != left


def take(
    versions: Versions,
    tree: Path,
    version: str,
    try_version: Callable[[Path, str, threading.Event], None] = try_version,
) -> None:
    """Move a tree beside the version in use, and use it from the next start on, if it starts and is wanted still.

    Args:
        versions: that are installed.
        tree: is moved, also if it does not start.
        version: of the tree.
        try_version: has it start.

    Raises:
        PotluckError: it does not start, somebody else's folder is to be changed, or the disk refuses it.
    """
    if not versions.is_writable():
        raise UsageError(NOT_YOURS)
    with versions.unpacking():
        if not is_wanted(versions, version):
            return  # another one has taken it meanwhile, or one that is newer
        new = versions.new(version)
        try:
            shutil.move(tree, new)
            try_version(new, version, threading.Event())
            versions.add(version)
        except OSError as error:
            raise StoreError(f"The new version cannot be installed: {reason(error)}.") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)  # of one that is not used
        versions.switch(version)


def main(words: Sequence[str], versions: Versions | None = None) -> int | str:
    """Do one of these. Return what `sys.exit` takes: 0, 1 if it is not wanted, or a sentence that says why not."""
    versions = versions or Versions.of_this()
    try:
        match list(words):
            case ["wants", version]:
                return 0 if versions is not None and is_wanted(versions, version) else 1
            case ["take", tree, version]:
                if versions is None:
                    raise UsageError(OLD_FOLDER)
                take(versions, Path(tree), version)
                return 0
            case _:
                return str(__doc__)
    except PotluckError as error:
        return error.message


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
