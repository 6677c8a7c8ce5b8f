"""Packages for Linux: a .deb for a computer, and a .tar.xz for a user, whose folder the AppImage has, too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from native import archives, launchers, tree
from native.pictures import SIZES
from native.project import BuildError, epoch, machine, maintainer, package_name, version

OPT = Path("opt/potluck")  # FHS 3.0, 3.13: what is no part of the distribution
_DEBIAN_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# What Qt takes from the system; the rest comes along. A computer without a screen can do without.
_FOR_THE_WINDOW = "libegl1, libgl1, libfontconfig1, libfreetype6, libglib2.0-0t64 | libglib2.0-0"
_FOR_THE_WINDOW += ", libdbus-1-3, libx11-6, libx11-xcb1, libwayland-client0, fontconfig"
_DESCRIPTION = """\
 Potluck finds the other computers of the home, pairs with them, and runs a
 language model that none of them could run alone. There is no account and no
 cloud. What computes layers (PyTorch, for this computer) is installed
 afterwards: potluck engine install.
"""


def for_a_user(made: Path, out: Path) -> Path:
    """Make the folder of what a user installs by its `install.sh`."""
    folder = _empty(out / "work" / "tarball")
    _hard_copy(made, folder / "tree")
    tree.write_info(folder / "tree", kind="tar")
    for name in ("install.sh", "uninstall.sh"):
        launchers.copy(name, folder / name, executable=True)
    for name in ("potluck.desktop", "potluck-mime.xml"):
        launchers.copy(name, folder / name)
    return folder


def tarball(folder: Path, out: Path, *, level: int = archives.LEVEL) -> Path:
    """Write the .tar.xz, which a user unpacks anywhere."""
    archive = out / package_name("linux", ".tar.xz")
    name = archive.name.removesuffix(".tar.xz")
    return archives.pack(folder, archive, name=name, seconds=epoch(), level=level)


def deb(made: Path, out: Path, *, glibc: str, level: int = archives.LEVEL) -> Path:
    """Write the .deb. It runs nothing when it is installed, and needs no network then.

    Args:
        made: the tree.
        out: the folder for the package.
        glibc: the oldest that the tree runs with, such as "2.34".
        level: of xz, 0 to 9.
    """
    root = _empty(out / "work" / "deb")
    _hard_copy(made, root / OPT)
    tree.write_info(root / OPT, kind="deb")
    _integrate(root)
    control = root / "DEBIAN"
    control.mkdir()
    arch = _debian_machine()
    kilobytes = archives.size(root) // 1024
    (control / "control").write_text(control_file(arch, glibc, kilobytes), encoding="utf-8")
    (control / "conffiles").write_text("/etc/ufw/applications.d/potluck\n", encoding="utf-8")
    (control / "md5sums").write_text(_md5sums(root), encoding="utf-8")
    launchers.copy("postrm", control / "postrm", executable=True)
    package = out / deb_name()
    command = ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{level}"]
    command += ["--build", str(root), str(package)]
    _run(command, "dpkg-deb is missing: build this package on Debian or Ubuntu.")
    return package


def deb_name() -> str:
    """Return the file name of the .deb, as Debian's tools write it: `potluck_0.1.0_amd64.deb`."""
    return f"potluck_{version()}_{_debian_machine()}.deb"


def control_file(arch: str, glibc: str, kilobytes: int) -> str:
    """Return Debian's description of the package (Debian Policy, 5.3)."""
    return (
        f"Package: potluck\nVersion: {version()}\nArchitecture: {arch}\nSection: net\n"
        f"Priority: optional\nMaintainer: {maintainer()}\n"
        f"Installed-Size: {kilobytes}\nDepends: libc6 (>= {glibc}), libstdc++6\n"
        f"Recommends: {_FOR_THE_WINDOW}\nSuggests: ufw | firewalld\n"
        f"Description: run a language model on the computers of one home\n{_DESCRIPTION}"
    )


def _integrate(root: Path) -> None:
    """Add what desktops and firewalls read. Triggers of their packages do the rest."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/potluck").symlink_to(f"/{OPT}/bin/potluck")
    desktop = {"exec": f"/{OPT}/bin/potluck-window"}
    launchers.fill("potluck.desktop", root / "usr/share/applications/potluck.desktop", desktop)
    launchers.copy("potluck-mime.xml", root / "usr/share/mime/packages/potluck.xml")
    for size in SIZES:
        target = root / f"usr/share/icons/hicolor/{size}x{size}/apps/potluck.png"
        target.parent.mkdir(parents=True)
        shutil.copy(root / OPT / f"share/icons/potluck-{size}.png", target)
    launchers.copy("potluck.ufw", root / "etc/ufw/applications.d/potluck")
    launchers.copy("potluck-firewalld.xml", root / "usr/lib/firewalld/services/potluck.xml")
    copyright_file = root / "usr/share/doc/potluck/copyright"
    copyright_file.parent.mkdir(parents=True)
    shutil.copy(root / OPT / "LICENSE", copyright_file)


def _debian_machine() -> str:
    arch = _DEBIAN_MACHINES.get(machine())
    if arch is None:
        raise BuildError(f"Debian has no name for the architecture {machine()} here.")
    return arch


def _md5sums(root: Path) -> str:
    import hashlib

    lines: list[str] = []
    for path in archives.entries(root):
        within = path.relative_to(root).as_posix()
        if path.is_file() and not path.is_symlink() and not within.startswith("DEBIAN/"):
            found = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            lines.append(f"{found}  {within}\n")
    return "".join(lines)


def _hard_copy(source: Path, target: Path) -> None:
    """Copy a tree without its bytes: by hard links. What is changed in the copy is replaced first."""
    shutil.copytree(source, target, symlinks=True, copy_function=os.link)
    (target / tree.INFO).unlink()


def _empty(folder: Path) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _run(command: list[str], missing: str) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise BuildError(missing) from None
    if ended.returncode:
        raise BuildError(f"{command[0]} failed:\n{ended.stderr.strip()}")
