"""The release before this one, out of the history: what others in a home may still run.

It is the last tag, or while there is none the last program that spoke the version of the protocol before. Its files
are in a folder of the tests' cache, made once.
"""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_VERSION = "protocol version **2**"  # the words of core/PROTOCOL.md since then
_LIMIT_S = 60.0
_NEEDED = ("core", "assets/guide")


class NoHistoryError(Exception):
    """There is no history here to take it from. The text says why."""


def _git(*words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoHistoryError(f"git cannot be asked: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise NoHistoryError(f"git {words[0]}: {said[-1] if said else done.returncode}")
    return done.stdout


def earlier_commit() -> str:
    """The commit of the release before.

    Raises:
        NoHistoryError: this is no checkout, or one without its history.
    """
    tags = _git("tag", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-v:refname", "v*")
    if tags.split():
        return _git("rev-parse", f"{tags.split()[0].decode()}^{{commit}}").decode().strip()
    if _git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise NoHistoryError("the checkout is shallow and has no tag: git fetch --unshallow --tags")
    made = _git(
        "log", "--format=%H", "--reverse", f"-S{_VERSION}", "--", "core/PROTOCOL.md"
    ).split()
    if not made:
        raise NoHistoryError("the history does not reach back to the protocol before")
    return _git("rev-parse", f"{made[0].decode()}^").decode().strip()


def unpacked(commit: str, folder: Path) -> Path:
    """Its files, in a folder of its own below this one.

    Raises:
        NoHistoryError: git does not give them.
    """
    place = folder / commit
    if not place.exists():
        making = folder / f"{commit}.part"
        shutil.rmtree(making, ignore_errors=True)
        archive = io.BytesIO(_git("archive", "--format=tar", commit, *_NEEDED))
        with tarfile.open(fileobj=archive) as files:
            files.extractall(making, filter="data")
        try:
            making.rename(place)
        except OSError:
            if not place.exists():  # else another run has just made it
                raise
    return place
