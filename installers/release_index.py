#!/usr/bin/env python3
"""The signed list of a release, which installed packages ask for: version, packages, sizes, SHA-256.

    python3 installers/release_index.py key                 a new key pair, printed: the private half is a secret
    python3 installers/release_index.py sign FOLDER URL     FOLDER/release.json, of the packages there; URL: where they are
    python3 installers/release_index.py check FOLDER        whether FOLDER/release.json is what packages would believe
    python3 installers/release_index.py renew FOLDER        the same list with a new date and end: packages refuse one that has ended
    python3 installers/release_index.py due FOLDER          status 1 if it is to be renewed, or has ended

`sign` and `renew` take the private key from POTLUCK_RELEASE_KEY (base64), or several with spaces or ends of lines between, and signs
with each. One must be the half of a key in release_keys.txt.
Needs `cryptography`, `msgspec` and `packaging`, as Potluck does; `artifacts.py index` runs it where they are missing.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "core"))

import msgspec
from artifacts import RELEASE_LIST as NAME
from artifacts import digest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from native.project import BuildError, release_keys, version
from sealing import key_text, private_key, seal, text
from terminal import say

from potluck.errors import IntegrityError
from potluck.update import freshness
from potluck.update.envelope import RELEASE_TYPE
from potluck.update.freshness import DAY_S
from potluck.update.release import Package, Release, read_release, this_machine

GOOD_S = (
    90 * DAY_S
)  # a list counts for so long: who replays one keeps a home on an old version no longer
DUE_S = 30 * DAY_S  # before its end it is renewed: time for a maintainer who is away
KEY = "POTLUCK_RELEASE_KEY"
_DEB = re.compile(r"potluck_(?P<version>[^_]+)_(?P<machine>amd64|arm64)\.deb")
_OTHER = re.compile(
    r"potluck-(?P<version>[^-]+)-(?P<system>linux|macos|windows)-(?P<machine>[a-z0-9_]+)(?P<suffix>\.tar\.xz|\.dmg|\.exe)"
)
_KINDS = {".tar.xz": "tar", ".dmg": "macos", ".exe": "windows"}


def new_key() -> tuple[str, str]:
    """A private key and its public half, both in base64."""
    key = Ed25519PrivateKey.generate()
    return text(key.private_bytes_raw()), key_text(key.public_key())


def packages(folder: Path, url: str) -> list[Package]:
    """The packages of this version in a folder.

    Raises:
        BuildError: there is none, or one of another version.
    """
    found: list[Package] = []
    for file in sorted(folder.iterdir()):
        named = _DEB.fullmatch(file.name) or _OTHER.fullmatch(file.name)
        if named is None:
            continue
        if named["version"] != version():
            raise BuildError(f"{file.name} is not of version {version()}.")
        is_deb = file.suffix == ".deb"
        found.append(
            Package(
                name=file.name,
                system="linux" if is_deb else named["system"],
                machine=this_machine(named["machine"]),
                kind="deb" if is_deb else _KINDS[named["suffix"]],
                nbytes=file.stat().st_size,
                sha256=digest(file),
                url=f"{url.rstrip('/')}/{file.name}",
            )
        )
    if not found:
        raise BuildError(f"There is no package in {folder}.")
    return found


def sign(
    folder: Path, url: str, secrets: str, keys: Sequence[str], *, now: float | None = None
) -> Path:
    """Write the list of the packages in a folder.

    Raises:
        BuildError: a key is none, or packages would believe none of them.
    """
    return _write(folder, version(), packages(folder, url), secrets, keys, now)


def renew(folder: Path, secrets: str, keys: Sequence[str], *, now: float | None = None) -> Path:
    """Sign the list in a folder again, for as long as a new one. Its packages need not be there.

    Raises:
        BuildError: it is not signed by one of these keys, is newer than now, or a key is none.
    """
    old = read(folder, keys)
    target = _write(folder, old.version, old.packages, secrets, keys, now)
    if read(folder, keys).issued <= old.issued:
        target.unlink()
        raise BuildError("The list is not older than now. Set the clock, and fetch the list again.")
    return target


def _write(
    folder: Path,
    named: str,
    listed: Sequence[Package],
    secrets: str,
    keys: Sequence[str],
    now: float | None,
) -> Path:
    try:
        private = [private_key(secret) for secret in secrets.split() or [""]]
    except ValueError:
        raise BuildError(f"{KEY} is no Ed25519 key: 32 bytes in base64.") from None
    if not any(key_text(key.public_key()) in keys for key in private):
        raise BuildError(
            "The public half of this key is not in installers/release_keys.txt, so no package would believe it."
        )
    issued = int(time.time() if now is None else now)
    release = Release(version=named, issued=issued, expires=issued + GOOD_S, packages=tuple(listed))
    target = folder / NAME
    target.write_bytes(seal(msgspec.json.encode(release), RELEASE_TYPE, *private) + b"\n")
    return target


def read(folder: Path, keys: Sequence[str]) -> Release:
    """Read the list in a folder, also one that has ended.

    Raises:
        BuildError: there is none, or it is not signed by one of these keys.
    """
    try:
        return read_release((folder / NAME).read_bytes(), keys)
    except (OSError, IntegrityError) as error:
        raise BuildError(f"{folder / NAME}: {error}") from None


def check(folder: Path, keys: Sequence[str], *, now: float | None = None) -> Release:
    """Read the list as a package does, and compare all files with it.

    Raises:
        BuildError: it is not what packages would believe, or a file is not what it says.
    """
    release = read(folder, keys)
    try:
        now = time.time() if now is None else now
        freshness.check(release.issued, release.expires, now=now, seen=0)
    except IntegrityError as error:
        raise BuildError(f"{folder / NAME}: {error}") from None
    for package in release.packages:
        file = folder / package.name
        if file.stat().st_size != package.nbytes or digest(file) != package.sha256:
            raise BuildError(f"{package.name} is not what {NAME} says.")
    return release


def need_no_renewal(folder: Path, keys: Sequence[str], *, now: float | None = None) -> str:
    """The day until which the list in a folder counts.

    Raises:
        BuildError: that is so soon that it is to be renewed.
    """
    release = read(folder, keys)
    until = freshness.day(release.expires)
    if release.expires - (time.time() if now is None else now) < DUE_S:
        raise BuildError(
            f"The list of Potluck {release.version} counts until {until}. Renew it before: gh workflow run renew.yml"
            f" --ref v{release.version}"
        )
    return until


def main(words: Sequence[str]) -> int:
    """Do one of these. Return 0; 1 after a sentence that says what is wrong; 2 for no such thing."""
    try:
        match list(words):
            case ["key"]:
                private, public = new_key()
                print(f"private, for the secret {KEY}: {private}")
                print(f"public, for installers/release_keys.txt: {public}")
            case ["sign", folder, url]:
                target = sign(Path(folder), url, os.environ.get(KEY, ""), release_keys())
                say(f"{target} is written.")
            case ["check", folder]:
                release = check(Path(folder), release_keys())
                say(f"{release.version}, {len(release.packages)} packages: as packages believe it.")
            case ["renew", folder]:
                target = renew(Path(folder), os.environ.get(KEY, ""), release_keys())
                say(f"{target} is signed anew.")
            case ["due", folder]:
                say(f"The list counts until {need_no_renewal(Path(folder), release_keys())}.")
            case _:
                say(str(__doc__))
                return 2
    except BuildError as error:
        say(f"\n{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
