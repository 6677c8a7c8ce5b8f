"""Releases to try updates with, made of one package: itself, a newer one, and one whose node ends at once.

Nothing is built: the tree of a .tar.xz gets another version, and is packed again. The lists are signed with a key that is
made for the try and that no other package believes, so that packages of a release can be tried as well.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import time
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sealing import key_text, seal

from native import archives, tree
from native.project import machine
from native.renumbering import recompile, renumber, site_packages
from potluck.update.envelope import RELEASE_TYPE
from potluck.update.freshness import DAY_S
from potluck.update.release import Package, Release

_LIST = "release.json"
_FAILS = "\n\ndef run(folders):\n    raise SystemExit('potluck: This version was made to fail.')\n"


class TrialReleases:
    """A folder that stands for the server of releases, and what it has.

    Args:
        package: a .tar.xz.
        folder: for the packages and lists; what is there is deleted.
        url: of that folder, on the server.
    """

    def __init__(self, package: Path, folder: Path, url: str) -> None:
        self.folder, self._url = folder, url
        self._key = Ed25519PrivateKey.generate()
        shutil.rmtree(folder, ignore_errors=True)
        unpacked = folder / "work"
        unpacked.mkdir(parents=True)
        with tarfile.open(package) as archive:
            archive.extractall(unpacked, filter="data")
        self._base = next(unpacked.iterdir())
        self._lists: dict[str, bytes] = {}
        own = json.loads((self._base / "tree" / tree.INFO).read_text("utf-8"))["version"]
        self.own, self.newer, self.broken = own, f"{own}.post1", f"{own}.post2"
        self.package = self._pack(own)
        for version in (self.newer, self.broken):
            self._release(version, self._pack(version))
        shutil.rmtree(unpacked)

    def publish(self, version: str) -> None:
        """Have the server show the list that names this version as the newest."""
        (self.folder / _LIST).write_bytes(self._lists[version])

    def take_back(self) -> None:
        """Have the server show a list that names the first version again, and is later than all others."""
        self._release(self.own, self.package)
        self.publish(self.own)

    def _pack(self, version: str) -> Path:
        """Pack the tree as a version; the one that is broken is packed last, since it stays so."""
        made = self._base / "tree"
        renumber(made, version)
        if version == self.broken:
            serving = site_packages(made) / "potluck" / "cluster" / "serving.py"
            serving.write_text(serving.read_text("utf-8") + _FAILS, encoding="utf-8")
            recompile(made, [serving])
        self._write_updates(made / tree.INFO)
        name = f"potluck-{version}-linux-{machine()}"
        return archives.pack(
            self._base, self.folder / f"{name}.tar.xz", name=name, seconds=0, level=0
        )

    def _write_updates(self, file: Path) -> None:
        info = json.loads(file.read_text("utf-8"))
        key = key_text(self._key.public_key())
        info["updates"] = {"index": f"{self._url}/{_LIST}", "keys": [key]}
        file.write_text(json.dumps(info), encoding="utf-8")

    def _release(self, version: str, package: Path) -> None:
        listed = Package(
            name=package.name,
            system="linux",
            machine=machine(),
            kind="tar",
            nbytes=package.stat().st_size,
            sha256=archives.digest(package),
            url=f"{self._url}/{package.name}",
        )
        issued = int(time.time()) + len(self._lists)  # each later than the one before
        release = Release(
            version=version, issued=issued, expires=issued + DAY_S, packages=(listed,)
        )
        self._lists[version] = seal(msgspec.json.encode(release), RELEASE_TYPE, self._key)
