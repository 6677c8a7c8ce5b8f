#!/usr/bin/env python3
"""What a release publishes beside its packages, and the look at it before.

    python3 installers/artifacts.py sbom FOLDER      potluck-VERSION.cdx.json: of what the packages are made (CycloneDX)
    python3 installers/artifacts.py index TAG FOLDER release.json: the signed list that packages ask for (release_index.py)
    python3 installers/artifacts.py sums FOLDER      SHA256SUMS: of all files there, as `sha256sum --check` reads it
    python3 installers/artifacts.py verify FOLDER    whether all files are those of SHA256SUMS
    python3 installers/artifacts.py publish TAG FOLDER    a release on GitHub, by `gh`: its news, and all files there
    python3 installers/artifacts.py due FOLDER       whether the newest release's release.json counts for a month still
    python3 installers/artifacts.py renew TAG FOLDER the newest release's release.json, signed anew and put in its place
    python3 installers/artifacts.py smoke FOLDER     whether this system's packages there start, as a user has them

Uses the standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from locked import LOCK, locked_python
from native.project import release_keys
from release import ROOT, VERSION_FILE, news
from terminal import say

CYCLONEDX = "cyclonedx-bom==7.5.0"  # the tool of the CycloneDX project
SUMS = "SHA256SUMS"
RELEASE_LIST = "release.json"
LIST_SCRIPT = ROOT / "installers" / "release_index.py"
NO_KEY = f"NO {RELEASE_LIST}: installers/release_keys.txt has no key yet. See CONTRIBUTING.md."
START_S = 300  # a first start on a slow runner


class ArtifactError(Exception):
    """Something is not as it has to be. The message is a sentence."""


def version() -> str:
    """The version of this checkout."""
    text = (ROOT / VERSION_FILE).read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise ArtifactError(f"{VERSION_FILE} has no __version__.")
    return found[1]


def sbom(folder: Path, lock: Path = LOCK) -> Path:
    """Write of what the packages are made: what the lock names, with its hashes.

    Raises:
        ArtifactError: there is no lock, or the tool failed or left something out.
    """
    if not lock.is_file():
        raise ArtifactError(f"{lock} is not there: nothing says what the packages are made of.")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"potluck-{version()}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="potluck-sbom-") as name:
        place = Path(name)
        _run(sys.executable, "-m", "venv", place)
        scripts = place / ("Scripts" if os.name == "nt" else "bin")
        _run(scripts / "python", "-m", "pip", "install", "--quiet", CYCLONEDX)
        write = (scripts / "cyclonedx-py", "requirements", lock, "--output-reproducible")
        _run(*write, "--of", "JSON", "--output-file", target)
    described = {
        part["name"].lower() for part in json.loads(target.read_text("utf-8"))["components"]
    }
    named = {
        _plain(found[1])
        for found in re.finditer(r"(?m)^([A-Za-z0-9._-]+)\s*[=;@\[]", lock.read_text("utf-8"))
    }
    if missing := named - {_plain(each) for each in described}:
        raise ArtifactError(f"{target.name} leaves out {', '.join(sorted(missing))}.")
    return target


def index(tag: str, folder: Path, lock: Path = LOCK) -> bool:
    """Have the list of the release written and signed, with what the lock names.

    Returns:
        False: nobody has made a key for releases yet, so there is none, and packages cannot look for newer versions.

    Raises:
        ArtifactError: there is a key and it was not used, or the list would not be believed.
    """
    if not release_keys():
        return False
    url = f"https://github.com/{os.environ['GITHUB_REPOSITORY']}/releases/download/{tag}"
    with locked_python(lock) as python:
        _run(python, LIST_SCRIPT, "sign", folder, url)
        _run(python, LIST_SCRIPT, "check", folder)
    return True


def due(folder: Path, lock: Path = LOCK) -> bool:
    """Have the list of the newest release fetched and looked at.

    Returns:
        False: nobody has made a key for releases yet, so there is none.

    Raises:
        ArtifactError: it is to be renewed, is none, or `gh` failed.
    """
    if not release_keys():
        return False
    _fetch_list(newest(), folder)
    with locked_python(lock) as python:
        _run(python, LIST_SCRIPT, "due", folder)
    return True


def renew(tag: str, folder: Path, lock: Path = LOCK) -> bool:
    """Have the list of the newest release fetched, signed anew, and put in its place.

    Returns:
        False: nobody has made a key for releases yet, so there is none.

    Raises:
        ArtifactError: another release is the newest: a fresh list of an old one would hold computers back. Or the list is
            none, or `gh` failed.
    """
    if not release_keys():
        return False
    if (last := newest()) != tag:
        raise ArtifactError(
            f"{tag} is not the newest release, so its list is not renewed: {last} is."
        )
    _fetch_list(tag, folder)
    with locked_python(lock) as python:
        _run(python, LIST_SCRIPT, "renew", folder)
    _run("gh", "release", "upload", tag, folder / RELEASE_LIST, "--clobber")
    return True


def newest() -> str:
    """The tag of the newest release, which packages ask.

    Raises:
        ArtifactError: `gh` failed.
    """
    words = ("release", "view", "--json", "tagName", "--jq", ".tagName")
    return _run("gh", *words, is_read=True).strip()


def _fetch_list(tag: str, folder: Path) -> None:
    words = ("--pattern", RELEASE_LIST, "--dir", folder, "--clobber")
    _run("gh", "release", "download", tag, *words)


def sums(folder: Path) -> Path:
    """Write the digests of all files in a folder, but of the list: it is signed, and is renewed in its place.

    Raises:
        ArtifactError: there is nothing.
    """
    files = sorted(folder / name for name in _summed(folder))
    if not files:
        raise ArtifactError(f"There is nothing in {folder}.")
    target = folder / SUMS
    lines = [f"{digest(path)}  {path.name}\n" for path in files]
    target.write_text("".join(lines), encoding="utf-8", newline="\n")
    return target


def verify(folder: Path) -> int:
    """Compare all files with their digests. Return how many there are.

    Raises:
        ArtifactError: one has changed, is missing, or is not named.
    """
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    known = {name: wanted for wanted, _, name in (line.partition("  ") for line in lines)}
    here = _summed(folder)
    if other := here ^ known.keys():
        raise ArtifactError(f"{SUMS} and the folder differ in {', '.join(sorted(other))}.")
    for name, wanted in known.items():
        if digest(folder / name) != wanted:
            raise ArtifactError(f"{name} is not what {SUMS} says.")
    return len(known)


def _summed(folder: Path) -> set[str]:
    files = {path.name for path in folder.iterdir() if path.is_file()}
    return files - {SUMS, RELEASE_LIST}


def publish(tag: str, folder: Path) -> None:
    """Make the release of a tag that was pushed, with what CHANGELOG.md says of it and all files.

    Raises:
        ArtifactError: nothing is said of it, or `gh` failed.
    """
    said = news(ROOT, f"## [{tag.removeprefix('v')}]")
    if not said:
        raise ArtifactError(f"CHANGELOG.md says nothing of {tag.removeprefix('v')}.")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    title = f"Potluck {tag.removeprefix('v')}"
    words = ("--verify-tag", "--title", title, "--notes", said)
    _run("gh", "release", "create", tag, *words, *files)


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def smoke(folder: Path) -> list[str]:
    """Start Potluck out of each package of this system, without installing it for all users.

    Returns:
        The names of the packages.

    Raises:
        ArtifactError: there is none, or one does not start.
    """
    openers = _OPENERS.get(sys.platform, {})
    packages = [path for path in sorted(folder.iterdir()) if _suffix(path) in openers]
    if not packages:
        raise ArtifactError(f"There is no package for {sys.platform} in {folder}.")
    for package in packages:
        with tempfile.TemporaryDirectory(
            prefix="potluck-smoke-", ignore_cleanup_errors=True
        ) as name:
            place = Path(name)
            program = openers[_suffix(package)](package.resolve(), place / "unpacked")
            _try(package.name, program, place / "home")
    return [package.name for package in packages]


def _try(name: str, program: list[str], home: Path) -> None:
    """Have a program say its version, and look at the computer as `potluck doctor` does."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environ["POTLUCK_HOME"] = str(home)

    def asked(*words: str) -> str:
        try:
            done = subprocess.run(
                [*program, *words], env=environ, capture_output=True, text=True, timeout=START_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ArtifactError(f"{name} does not start: {error}") from error
        if done.returncode not in (0, 1):  # 1: the doctor found something, on a runner as well
            raise ArtifactError(f"{name} {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    if version() not in (said := asked("--version")):
        raise ArtifactError(f"{name} says that it is {said.strip()!r}, not {version()}.")
    try:
        json.loads(asked("doctor", "--json"))
    except ValueError as error:
        raise ArtifactError(f"{name} doctor --json prints no JSON: {error}") from error


def _open_tar(package: Path, place: Path) -> list[str]:
    with tarfile.open(package) as archive:
        archive.extractall(place, filter="data")
    return [_program(place)]


def _open_deb(package: Path, place: Path) -> list[str]:
    _run("dpkg-deb", "--extract", package, place)
    return [_program(place)]


def _open_appimage(package: Path, place: Path) -> list[str]:
    place.mkdir()
    package.chmod(0o755)  # who downloads one has to say so, too
    _run(package, "--appimage-extract", cwd=place, is_read=True)
    return [_program(place)]


def _open_dmg(package: Path, place: Path) -> list[str]:
    _run("hdiutil", "attach", "-nobrowse", "-readonly", "-mountpoint", place / "disk", package)
    try:
        shutil.copytree(next((place / "disk").glob("*.app")), place / "app", symlinks=True)
    finally:
        _run("hdiutil", "detach", place / "disk")
    return [_program(place / "app")]


def _open_exe(package: Path, place: Path) -> list[str]:
    _run(package, "/VERYSILENT", "/SUPPRESSMSGBOXES", "/NORESTART", "/CURRENTUSER", f"/DIR={place}")
    return [_program(place)]


_OPENERS: dict[str, dict[str, Callable[[Path, Path], list[str]]]] = {
    "linux": {".tar.xz": _open_tar, ".deb": _open_deb, ".AppImage": _open_appimage},
    "darwin": {".dmg": _open_dmg},
    "win32": {".exe": _open_exe},
}


def _program(place: Path) -> str:
    """The command `potluck` of what was unpacked."""
    names = ("potluck.exe", "potluck.cmd", "potluck")
    found = [path for name in names for path in sorted(place.rglob(name)) if path.is_file()]
    if not found:
        raise ArtifactError("There is no program “potluck” in the package.")
    return str(min(found, key=lambda path: (path.parent.name != "bin", len(path.parts))))


def _suffix(path: Path) -> str:
    return ".tar.xz" if path.name.endswith(".tar.xz") else path.suffix


def _plain(name: str) -> str:
    """A name of a package as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(*command: str | Path, is_read: bool = False, cwd: Path | None = None) -> str:
    """Run a command; returns what it prints, if that is read."""
    words = [str(word) for word in command]
    out = subprocess.PIPE if is_read else None
    try:
        done = subprocess.run(words, check=False, stdout=out, text=True, cwd=cwd)
    except OSError as error:
        raise ArtifactError(f"{words[0]} cannot be started: {error.strerror}.") from error
    if done.returncode:
        raise ArtifactError(f"{' '.join(words[:3])} … ended with status {done.returncode}.")
    return done.stdout or ""


def main(words: Sequence[str]) -> int:
    """Do one of these. Return 0; 1 after a sentence that says what is wrong; 2 for no such thing."""
    try:
        match list(words):
            case ["sbom", folder]:
                say(f"{sbom(Path(folder))} is written.")
            case ["index", tag, folder]:
                if index(tag, Path(folder)):
                    say(f"{Path(folder) / RELEASE_LIST} is written and signed.")
                else:
                    say(NO_KEY)
            case ["due", folder]:
                say("It counts for a month and more." if due(Path(folder)) else NO_KEY)
            case ["renew", tag, folder]:
                say(f"The list of {tag} is renewed." if renew(tag, Path(folder)) else NO_KEY)
            case ["sums", folder]:
                say(f"{sums(Path(folder))} is written.")
            case ["verify", folder]:
                say(f"{verify(Path(folder))} files are as {SUMS} says.")
            case ["smoke", folder]:
                say(f"These start: {', '.join(smoke(Path(folder)))}.")
            case ["publish", tag, folder]:
                publish(tag, Path(folder))
            case _:
                say(str(__doc__))
                return 2
    except ArtifactError as error:
        say(f"\n{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
