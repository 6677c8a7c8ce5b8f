"""The AppImage: a starter (`files/appimage.c`), and behind it an image with what is in the .tar.xz.

    AppRun              has the package installed for its user, and opens it
    potluck.desktop     for programs that show or sort AppImages, as are the pictures
    potluck.png, .DirIcon
    licences/           of what the starter is linked with
    package/            what is in the .tar.xz

The starter is linked with nothing of the system it runs on. What it is made of are Debian's packages (`NEEDED`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from native import archives, launchers
from native.project import BuildError, epoch, package_name, version

NEEDED = ("gcc", "libc6-dev", "libsquashfuse-dev", "libzstd-dev", "squashfs-tools")  # of Debian
LEVEL = 19  # of zstd: 22 takes three times the memory for 1 %
_LINKED = ("libsquashfuse-dev", "libzstd-dev", "libc6-dev")
_DOCS = Path("/usr/share/doc")
_MAGIC = b"AI\x02"  # at _MAGIC_AT: an AppImage of type 2
_MAGIC_AT = 8
_ICON = 256


def missing() -> list[str]:
    """Return which of these packages are not installed here."""
    return [name for name in NEEDED if not (_DOCS / name / "copyright").exists()]


def write(package: Path, out: Path, *, level: int = LEVEL) -> Path:
    """Write the AppImage.

    Args:
        package: the folder with what is in the .tar.xz.
        out: the folder for it.
        level: of zstd, 1 to 22.
    """
    work = out / "work" / "appimage"
    shutil.rmtree(work, ignore_errors=True)
    folder = work / "AppDir"
    folder.mkdir(parents=True)
    fill(package, folder)
    for name in _LINKED:
        _copy_licence(name, folder / "licences")
    target = out / package_name("linux", ".AppImage")
    return join(marked(starter(work / "starter").read_bytes()), folder, target, level=level)


def join(program: bytes, folder: Path, target: Path, *, level: int = LEVEL) -> Path:
    """Write an AppImage of what it starts with and of the folder that becomes its image."""
    image = pack(folder, target.with_suffix(".image"), level=level)
    with target.open("wb") as file, image.open("rb") as stream:
        file.write(program)
        shutil.copyfileobj(stream, file)
    target.chmod(0o755)
    image.unlink()
    return target


def fill(package: Path, folder: Path) -> None:
    """Fill the folder that becomes the image, with links to the package's files."""
    shutil.copytree(package, folder / "package", symlinks=True, copy_function=os.link)
    megabytes = round(archives.size(package) / 1e6)
    values = {"version": version(), "megabytes": str(megabytes)}
    launchers.fill("AppRun", folder / "AppRun", values)
    (folder / "AppRun").chmod(0o755)
    launchers.fill("potluck.desktop", folder / "potluck.desktop", {"exec": "AppRun"})
    for name in ("potluck.png", ".DirIcon"):
        shutil.copy(package / f"tree/share/icons/potluck-{_ICON}.png", folder / name)


def starter(target: Path) -> Path:
    """Compile what an AppImage starts with. Nothing of it follows the image, which is found by its end."""
    source = str(launchers.FILES / "appimage.c")
    command = ["cc", "-O2", "-static", "-s", "-ffunction-sections", "-Wl,--gc-sections"]
    _run([*command, "-o", str(target), source, "-lsquashfuse", "-lzstd"])
    return target


def marked(program: bytes) -> bytes:
    """Return a program that is known as an AppImage."""
    return program[:_MAGIC_AT] + _MAGIC + program[_MAGIC_AT + len(_MAGIC) :]


def pack(folder: Path, image: Path, *, level: int = LEVEL) -> Path:
    """Pack a folder into a SquashFS image: owned by root, of one time."""
    command = ["mksquashfs", str(folder), str(image), "-noappend", "-no-progress", "-quiet"]
    command += ["-comp", "zstd", "-Xcompression-level", str(level), "-b", "1M"]
    command += ["-all-root", "-no-xattrs", "-mkfs-time", str(epoch()), "-all-time", str(epoch())]
    # mksquashfs refuses to be told the time twice.
    _run(command, {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"})
    return image


def _copy_licence(name: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    try:
        shutil.copy(_DOCS / name / "copyright", folder / name)
    except FileNotFoundError:
        raise _missing() from None


def _run(command: list[str], environ: dict[str, str] | None = None) -> None:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, env=environ)
    except FileNotFoundError:
        raise _missing() from None
    if ended.returncode:
        raise BuildError(f"{command[0]} failed:\n{ended.stderr.strip()}")


def _missing() -> BuildError:
    return BuildError(f"For the AppImage, Debian's packages {', '.join(NEEDED)} are needed.")
