"""Releases for tests: signed with a key of their own, of tiny packages whose Python is a script that starts this one."""

import base64
import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sealing import key_text, seal

from potluck.system.installation import Package as Installed
from potluck.system.installation import Updates
from potluck.update.envelope import RELEASE_TYPE
from potluck.update.release import Package, Release

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
KEYS = (key_text(KEY.public_key()),)
ISSUED, EXPIRES = (
    1_700_000_000,
    4_102_444_800,
)  # 2023-11-14 and 2100-01-01: good for as long as tests are run


def package(file: Path, version: str, url: str = "https://packages.invalid") -> Package:
    """What a release says of a file: the .tar.xz for a computer of tests."""
    data = file.read_bytes()
    return Package(
        name=f"potluck-{version}-linux-x86_64.tar.xz",
        system="linux",
        machine="x86_64",
        kind="tar",
        nbytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        url=f"{url}/potluck-{version}.tar.xz",
    )


def signed(
    version: str,
    *packages: Package,
    issued: int = ISSUED,
    expires: int = EXPIRES,
    key: Ed25519PrivateKey = KEY,
) -> bytes:
    """The envelope of a release."""
    release = Release(version=version, issued=issued, expires=expires, packages=packages)
    return seal(msgspec.json.encode(release), RELEASE_TYPE, key)


def altered(envelope: bytes) -> bytes:
    """The same envelope, with another version in what was signed."""
    said = json.loads(envelope)
    payload = base64.b64decode(said["payload"]).replace(b'"version":"', b'"version":"9')
    said["payload"] = base64.b64encode(payload).decode()
    return json.dumps(said).encode()


def make_tree(folder: Path, version: str, *, code: str = "") -> Path:
    """A tree whose Python is this one, as that of a version: `code` runs before anything else."""
    (folder / "python" / "bin").mkdir(parents=True)
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        # `package()` finds a package by where its Python lies, and this one's lies elsewhere.
        "import sys\nsys.prefix = __file__.replace('site/sitecustomize.py', 'python')\n"
        f"import potluck\npotluck.__version__ = {version!r}\n{code}\n"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    python = folder / "python" / "bin" / "python3"
    # What starts it takes Python's own variables away, as for a whole Python.
    here = 'here=$(readlink -f "$0")'
    python.write_text(
        f'#!/bin/sh\n{here}\nPYTHONPATH="${{here%/python/bin/*}}/site:{paths}" exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    (folder / "potluck.json").write_text(json.dumps({"version": version, "kind": "tar"}))
    return folder


def make_root(folder: Path, version: str) -> Path:
    """What install.sh makes of the .tar.xz of a version."""
    make_tree(folder / "versions" / version, version)
    (folder / "tree").symlink_to(Path("versions") / version)
    return folder


def installed(root: Path, version: str, *, index: str = "https://index.invalid") -> Installed:
    """The package that runs from such a folder."""
    return Installed(root / "versions" / version, "tar", version, Updates(index, KEYS))


def make_archive(folder: Path, version: str, *, code: str = "") -> Path:
    """The .tar.xz of a version."""
    name = f"potluck-{version}"
    make_tree(folder / name / "tree", version, code=code)
    (folder / name / "install.sh").touch()
    archive = folder / f"{name}.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(folder / name, name)
    return archive
