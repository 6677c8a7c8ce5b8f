"""Unpacks the .tar.xz of a release: its tree alone, and nothing outside the folder.

The archive has the hash of the signed list already. What is checked here holds for a release that was packed wrongly, too.
"""

import lzma
import shutil
import tarfile
import threading
from pathlib import Path, PurePosixPath
from typing import Final

from potluck.errors import DiskFullError, IntegrityError, StoreError, format_bytes
from potluck.reasons import reason
from potluck.runtime.stopping import go_on

MOST_FILES: Final = 100_000  # a tree has 6,000
MOST_BYTES: Final = 8 << 30
_FIRST: Final = 64  # files between two looks whether it was stopped
_TREE: Final = "tree"
_SPARE: Final = 4  # times as large as its archive a tree is about


def unpack(archive: Path, target: Path, stopped: threading.Event) -> None:
    """Unpack `NAME/tree/` of an archive into a folder that is not there yet.

    Raises:
        StoppedError: `stopped` was set; the folder is left as it is.
        IntegrityError: it is no such archive, or one that must not be unpacked.
        DiskFullError: there is no room for it. StoreError: the disk refuses it.
    """
    try:
        _check_room(archive, target.parent)
        target.mkdir()
        with tarfile.open(archive, "r:xz") as tar:
            _extract(tar, target, stopped)
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise _bad(str(error)[:200]) from error
    except OSError as error:
        raise StoreError(f"The new version cannot be unpacked: {reason(error)}.") from error
    if not (target / "potluck.json").is_file():
        raise _bad("treeless")


def _extract(tar: tarfile.TarFile, target: Path, stopped: threading.Event) -> None:
    count = nbytes = 0
    for member in tar:
        count, nbytes = count + 1, nbytes + member.size
        if count > MOST_FILES or nbytes > MOST_BYTES:
            raise _bad("huge")
        if count % _FIRST == 0:
            go_on(stopped)
        parts = PurePosixPath(member.name).parts
        if len(parts) < 3 or parts[1] != _TREE:
            continue  # the scripts beside the tree
        if not (member.isreg() or member.isdir() or member.issym()):
            raise _bad("special-file")
        inside = member.replace(name="/".join(parts[2:]), deep=False)
        # Refuses absolute names, `..`, and links that lead out of the folder.
        tar.extract(inside, target, filter="data")


def _check_room(archive: Path, folder: Path) -> None:
    needed, free = _SPARE * archive.stat().st_size, shutil.disk_usage(folder).free
    if needed > free:
        raise DiskFullError(
            f"The new version needs about {format_bytes(needed)} on the disk, and {format_bytes(free)} are free. Free"
            " some space and try again; what is here is kept.",
            needed=needed,
            available=free,
        )


def _bad(why: str) -> IntegrityError:
    return IntegrityError(
        "The package of the new version is damaged. It is not used, and nothing was changed. Tell the makers of"
        " Potluck.",
        reason=why,
    )
