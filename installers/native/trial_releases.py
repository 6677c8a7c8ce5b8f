"""Releases to try updates with, made of one package: itself, a newer one, and one whose node ends at once.

Nothing is built: the tree of a .tar.xz gets another version, and is packed again. The lists are signed with a key that is
made for the try and that no other package believes, so that packages of a release can be tried as well.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sealing import key_text, seal

from native import archives, tree
from native.project import BuildError, machine
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
        site = next((self._base / "tree" / "python" / "lib").glob("python3*/site-packages"))
        module = site / "potluck" / "__init__.py"
        text, count = re.subn(
            r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', module.read_text("utf-8")
        )
        if count != 1:
            raise BuildError(f"{module} has no __version__.")
        module.write_text(text, encoding="utf-8")
        changed = [module]
        if version == self.broken:
            changed.append(site / "potluck" / "cluster" / "serving.py")
            changed[-1].write_text(changed[-1].read_text("utf-8") + _FAILS, encoding="utf-8")
        self._compile(changed)
        self._write_info(version)
        name = f"potluck-{version}-linux-{machine()}"
        return archives.pack(
            self._base, self.folder / f"{name}.tar.xz", name=name, seconds=0, level=0
        )

    def _compile(self, modules: list[Path]) -> None:
        """Compile with the Python of the tree, which compares no bytecode with its source."""
        python = self._base / "tree" / "python" / "bin" / "python3"
        mode = "py_compile.PycInvalidationMode.UNCHECKED_HASH"
        code = f"import py_compile, sys\nfor each in sys.argv[1:]: py_compile.compile(each, doraise=True, invalidation_mode={mode})"
        subprocess.run([python, "-I", "-c", code, *modules], check=True)

    def _write_info(self, version: str) -> None:
        file = self._base / "tree" / tree.INFO
        info = json.loads(file.read_text("utf-8"))
        info["version"] = version
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
