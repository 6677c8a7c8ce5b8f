"""Unpacks a wheel: nothing outside the folder, no links, no bombs, every file with the hash of its RECORD.

The archive has the hash of the lock already; what is checked here holds for a lock that is wrong, too.
https://packaging.python.org/specifications/binary-distribution-format has the format.
"""

import base64
import csv
import hashlib
import io
import shutil
import stat
import struct
import threading
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from potluck.errors import DiskFullError, IntegrityError, StoreError, format_bytes
from potluck.reasons import reason
from potluck.runtime.stopping import go_on
from potluck.system.durable import keep_all, keep_file
from potluck.system.paths import of_any_length

MOST_FILES: Final = 100_000  # torch has 13,000
MOST_BYTES: Final = 16 << 30  # unpacked; the largest of today has 2 GB
MOST_RECORD: Final = 32 << 20  # bytes of the list of files
_PIECE: Final = 1 << 20
_HERE: Final = (
    "purelib",
    "platlib",
)  # what of `*.data/` belongs into the folder; scripts and man pages do not
_UNSIGNED: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")
_BAD: Final = frozenset('\\:*?"<>|') | {
    chr(code) for code in range(32)
}  # no file of Windows has these
_PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as wheels are
_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    csv.Error,
    EOFError,
    ValueError,
    RuntimeError,
)  # what the libraries raise for archives and lists that are none
_MARKS: Final = ".unpacked"  # folder of one empty file for each wheel that is unpacked


@dataclass(frozen=True, slots=True)
class _Member:
    info: zipfile.ZipInfo
    to: Path
    sha256: str  # as RECORD writes it
    nbytes: int


def unpack(wheel: Path, into: Path, mark: str, stopped: threading.Event | None = None) -> None:
    """Unpack a wheel, unless it was unpacked to its end before.

    Args:
        wheel: the file.
        into: the folder that others of the engine are unpacked into as well.
        mark: names the wheel: its digest.
        stopped: ends it between two pieces when it is set.

    Raises:
        StoppedError: `stopped` was set; a later call goes on with this wheel from its beginning.
        IntegrityError: it is no wheel, or one that must not be unpacked.
        DiskFullError: the disk has no room for it; nothing was written.
        StoreError: the disk cannot take it.
    """
    stopped = stopped or threading.Event()
    into = of_any_length(into)  # torch has names of 171 characters
    done = into / _MARKS / mark
    if done.exists():
        return
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _members(archive, into)
            _check_room(into, sum(member.nbytes for member in members))
            for member in members:
                _write(archive, member, stopped)
        keep_all()  # the mark must not outlive a power cut that the files do not
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()
    except _DAMAGED as error:
        raise _bad(f"is no wheel ({error})") from error
    except OSError as error:
        raise StoreError(f"The engine cannot be unpacked: {reason(error)}.") from error


def _members(archive: zipfile.ZipFile, into: Path) -> list[_Member]:
    """The files to write, all of which were checked."""
    infos = [info for info in archive.infolist() if not info.is_dir()]
    if len(infos) > MOST_FILES or sum(info.file_size for info in infos) > MOST_BYTES:
        raise _bad("is too large")
    names = {_checked(info).as_posix().casefold() for info in infos}
    if len(names) != len(infos):
        raise _bad("has a file twice")
    records = [info for info in infos if _is_record(PurePosixPath(info.filename), "RECORD")]
    if len(records) != 1 or records[0].file_size > MOST_RECORD:
        raise _bad("has no list of its files")
    with archive.open(records[0]) as file:
        listed = _read_record(file.read(MOST_RECORD).decode())
    members: list[_Member] = []
    for info in infos:
        path = PurePosixPath(info.filename)
        if any(_is_record(path, name) for name in _UNSIGNED):
            continue
        sha256, nbytes = listed.get(info.filename, ("", -1))
        if not sha256 or nbytes != info.file_size:
            raise _bad(f"has {info.filename[:200]!r}, which its list does not have so")
        if (place := _place(path)) is not None:
            members.append(_Member(info, into.joinpath(*place.parts), sha256, nbytes))
    return members


def _checked(info: zipfile.ZipInfo) -> PurePosixPath:
    """The path of a member, if it stays in the folder on every system, and is a plain file."""
    # zipfile cuts a name at a NUL, so the name as it was stored is looked at.
    name, mode = info.orig_filename, info.external_attr >> 16
    parts = name.split("/")
    if any(part in ("", ".", "..") or set(part) & _BAD or part[-1] in " ." for part in parts):
        raise _bad(f"has a file {name[:200]!r}")
    is_plain = stat.S_IFMT(mode) in (0, stat.S_IFREG) and info.compress_type in _PACKED
    if not is_plain or info.flag_bits & 1:  # bit 0: encrypted
        raise _bad(f"has {name[:200]!r}, which is no plain file")
    if parts[0].casefold() == _MARKS:
        raise _bad(f"has a file {name[:200]!r}")
    return PurePosixPath(name)


def _is_record(path: PurePosixPath, name: str) -> bool:
    return len(path.parts) == 2 and path.parts[0].endswith(".dist-info") and path.name == name


def _read_record(text: str) -> dict[str, tuple[str, int]]:
    """The hash and the size of each file that a RECORD lists with both."""
    listed: dict[str, tuple[str, int]] = {}
    for row in csv.reader(io.StringIO(text, newline="")):
        if len(row) == 3 and row[1].startswith("sha256=") and row[2].isascii() and row[2].isdigit():
            listed[row[0]] = (row[1].removeprefix("sha256="), int(row[2]))
    return listed


def _place(path: PurePosixPath) -> PurePosixPath | None:
    """Where a file goes below the folder; None: the engine does not need it."""
    if not path.parts[0].endswith(".data"):
        return path
    if len(path.parts) > 2 and path.parts[1] in _HERE:
        return PurePosixPath(*path.parts[2:])
    return None


def _check_room(into: Path, nbytes: int) -> None:
    into.mkdir(parents=True, exist_ok=True)
    if nbytes > (free := shutil.disk_usage(into).free):
        raise no_room(nbytes, free)


def no_room(needed: int, free: int) -> DiskFullError:
    """The error that says how much room the engine lacks."""
    return DiskFullError(
        f"The engine needs {format_bytes(needed)} on the disk, and {format_bytes(free)} are free. Free some"
        " space and try again; what is here is kept.",
        needed=needed,
        available=free,
    )


def _write(archive: zipfile.ZipFile, member: _Member, stopped: threading.Event) -> None:
    member.to.parent.mkdir(parents=True, exist_ok=True)
    sha, count = hashlib.sha256(), 0
    with archive.open(member.info) as source, member.to.open("wb") as out:
        while piece := source.read(_PIECE):
            go_on(stopped)
            count += len(piece)
            if count > member.nbytes:
                break
            sha.update(piece)
            out.write(piece)
        keep_file(out)
    found = base64.urlsafe_b64encode(sha.digest()).decode().rstrip("=")
    if count != member.nbytes or found != member.sha256.rstrip("="):
        member.to.unlink()
        raise _bad(f"has other bytes in {member.info.filename[:200]!r} than its list says")
    if (member.info.external_attr >> 16) & 0o111:
        member.to.chmod(0o755)


def _bad(what: str) -> IntegrityError:
    return IntegrityError(
        f"A file of the engine {what}. It is not used. Remove the engine and install it again; if that does not"
        " help, tell the makers of Potluck."
    )
