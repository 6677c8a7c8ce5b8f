"""Archives that are the same for the same files, and their checksums."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from native.project import BuildError

_PIECE = 1 << 20
LEVEL = 6  # of xz: 9 takes twice the time for 3 % less


def entries(folder: Path) -> Iterator[Path]:
    """Yield what is below a folder in one order on each system."""
    yield from sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts)


def pack(folder: Path, archive: Path, *, name: str, seconds: int, level: int = LEVEL) -> Path:
    """Write a `.tar.xz` with a folder: sorted, owned by root, of one time.

    Args:
        folder: what is packed.
        archive: the file to write.
        name: of the folder in the archive.
        seconds: the time of all files.
        level: of xz, 0 to 9.
    """
    # Two threads, however many there are here: with one, xz writes other bytes.
    with archive.open("wb") as stream:
        command = ["xz", f"-{level}", "--threads=2", "--check=crc64", "--stdout"]
        try:
            xz = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stream)
        except FileNotFoundError:
            raise BuildError("xz is missing. Install xz-utils, then try again.") from None
        assert xz.stdin is not None
        with xz.stdin, tarfile.open(fileobj=xz.stdin, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            tar.add(folder, name, recursive=False, filter=_plain(seconds))
            for path in entries(folder):
                within = f"{name}/{path.relative_to(folder).as_posix()}"
                tar.add(path, within, recursive=False, filter=_plain(seconds))
    if xz.wait():
        raise BuildError(f"xz could not write {archive}.")
    return archive


def _plain(seconds: int) -> Callable[[tarfile.TarInfo], tarfile.TarInfo]:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = seconds
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    return plain


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_PIECE):
            found.update(piece)
    return found.hexdigest()


def write_checksum(file: Path) -> Path:
    """Write `FILE.sha256` beside a package, as `sha256sum --check` reads it."""
    beside = file.with_name(file.name + ".sha256")
    beside.write_text(f"{digest(file)}  {file.name}\n", encoding="utf-8", newline="\n")
    return beside


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
