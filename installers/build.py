#!/usr/bin/env python3
"""Build the packages of this system: `python3 installers/build.py linux|macos|windows|lock`.

    linux      .deb, .tar.xz and AppImage
    macos      Potluck.app in a .dmg; signed and notarised if the variables for it are set
    windows    an installer for one user, by Inno Setup
    lock       write installers/locks/app.txt anew; --upgrade takes the newest versions

Packages and their checksums are written to `dist/`. A package is built on the system and the
architecture that it is for. README.md beside this file says what they are made of, and why.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from native import archives, requirements, tree
from native.project import ROOT, BuildError
from terminal import say

_LINUX = ["tar", "deb", "appimage"]


def main(words: list[str] | None = None) -> int:
    """Build, and return 0; 1 after a sentence that says why not."""
    options = _parser().parse_args(words)
    try:
        if options.what == "lock":
            requirements.write_lock(upgrade=options.upgrade)
            say(f"{requirements.LOCK} is written.")
            return 0
        for package in _build(options):
            beside = archives.write_checksum(package)
            say(f"{package}  {package.stat().st_size / 1e6:.1f} MB, {beside.name} beside it")
    except BuildError as error:
        say(f"\n{error}")
        return 1
    return 0


def _build(options: argparse.Namespace) -> list[Path]:
    here = {"linux": "linux", "darwin": "macos", "win32": "windows"}.get(sys.platform)
    if here != options.what:
        raise BuildError(
            f"Packages for {options.what} are built there, and this is {sys.platform}."
        )
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    made = out / "work" / "tree"
    if not (options.keep_tree and (made / tree.INFO).exists()):
        begun = time.monotonic()
        tree.build(made, this_python=options.this_python)
        took = time.monotonic() - begun
        say(f"the tree: {archives.size(made) / 1e6:.0f} MB, in {took:.0f} s")
    if options.what == "linux":
        return _linux(options, made, out)
    if options.what == "macos":
        from native import macos

        return [macos.dmg(made, out)]
    from native import windows

    return [windows.installer(made, out)]


def _linux(options: argparse.Namespace, made: Path, out: Path) -> list[Path]:
    from native import appimage, glibc, linux

    wanted = options.only or _LINUX
    packages: list[Path] = []
    folder = linux.for_a_user(made, out)
    level = 0 if options.fast else archives.LEVEL
    if "deb" in wanted:
        packages.append(linux.deb(made, out, glibc=glibc.needed(made), level=level))
    if "tar" in wanted:
        packages.append(linux.tarball(folder, out, level=level))
    if "appimage" in wanted:
        fast = 1 if options.fast else appimage.LEVEL
        packages.append(appimage.write(folder, out, level=fast))
    return packages


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Raw)
    parser.add_argument("what", choices=["linux", "macos", "windows", "lock"])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="for the packages (dist)")
    parser.add_argument("--only", action="append", choices=_LINUX)
    parser.add_argument("--this-python", action="store_true", help="for trials: no download of one")
    parser.add_argument("--fast", action="store_true", help="for trials: hardly compressed")
    parser.add_argument("--keep-tree", action="store_true", help="wrap the tree of the last build")
    parser.add_argument("--upgrade", action="store_true", help="of `lock`: the newest versions")
    return parser


_Raw = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    sys.exit(main())
