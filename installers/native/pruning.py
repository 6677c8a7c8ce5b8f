"""What of the packages that Potluck needs is left out of a tree, since Potluck uses none of it.

Qt is a list of what stays: the window uses five of its modules. Everything else is a list of what
goes. What stays was found by what the libraries are linked with, which `missing_qt` checks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from native import libraries

_MODULES = ("QtCore", "QtGui", "QtWidgets", "QtNetwork", "QtSvg")
# On Linux, the platforms X11 and Wayland are linked with the others.
_LIBRARIES = ("Core", "Gui", "Widgets", "Network", "Svg", "DBus", "XcbQpa", "OpenGL")
_LIBRARIES += ("WaylandClient", "WlShellIntegration")
_PLUGINS = {  # folders, and the names in them that stay; the names differ by system
    "iconengines": ("qsvgicon",),
    "imageformats": ("qgif", "qico", "qicns", "qjpeg", "qsvg", "qwebp"),
    "platforminputcontexts": ("composeplatforminputcontext", "ibusplatforminputcontext"),
    "platforms": ("qxcb", "qwayland", "qoffscreen", "qminimal", "qwindows", "qcocoa"),
    "platformthemes": ("qgtk3", "qxdgdesktopportal"),
    "styles": ("qmodernwindowsstyle", "qmacstyle"),
    "wayland-decoration-client": ("adwaita", "bradient"),
    "wayland-graphics-integration-client": ("qt-plugin-wayland-egl", "shm-emulation-server"),
    "wayland-shell-integration": ("xdg-shell", "qt-shell"),
    "xcbglintegrations": ("qxcb-egl-integration", "qxcb-glx-integration"),
}
_KEPT_BESIDE_QT = (
    "__init__.py",
    "_config.py",
    "_git_pyside_version.py",
    "py.typed",
    "support",
    "Qt",
)
_QT_FOLDERS = ("lib", "plugins", "translations")
_GONE = (  # below site-packages
    "**/*.pyi",
    "**/*.h",
    "**/*.pyx",
    "**/*.pxd",
    "**/*.a",
    "**/__pycache__",
    "bin",
    "Scripts",
    "numpy/**/tests",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/f2py",
    "numpy/random/_examples",
    "numpy/random/lib",
    "psutil/tests",
    "cffi/recompiler.py",
    "PIL/ImageTk.py",
    "PIL/_imagingtk*",
    "llvmlite/tests",
    "wcwidth/tests",
    "shiboken6_generator*",
)


def prune(site: Path, *, languages: Iterable[str] = ("de",)) -> None:
    """Delete from a folder of packages what Potluck does not use.

    Args:
        site: the folder, as pip fills it.
        languages: of the window; the texts that Qt itself has for them stay.
    """
    for pattern in _GONE:
        for found in list(site.glob(pattern)):
            _remove(found)
    pyside = site / "PySide6"
    if pyside.is_dir():
        for file in list(pyside.iterdir()):
            if not _is_kept(file.name):
                _remove(file)
        _prune_qt(_qt(pyside), tuple(languages))


def _is_kept(name: str) -> bool:
    """Return whether a file or folder directly in PySide6 stays."""
    if name in (*_KEPT_BESIDE_QT, "plugins", "translations"):
        return True
    if re.match(r"(lib)?(pyside6|shiboken6)\.", name) or name.lower().startswith(
        ("msvcp", "vcrun")
    ):
        return True
    stem = name.partition(".")[0]
    return stem in _MODULES or stem in {f"Qt6{part}" for part in _LIBRARIES}


def _qt(pyside: Path) -> Path:
    """Return the folder with Qt's own folders: PySide6 itself on Windows."""
    return pyside / "Qt" if (pyside / "Qt").is_dir() else pyside


def _prune_qt(qt: Path, languages: tuple[str, ...]) -> None:
    if qt.name == "Qt":
        for folder in list(qt.iterdir()):
            if folder.name not in _QT_FOLDERS:
                _remove(folder)
    for file in list((qt / "lib").glob("*")):
        part = re.match(r"(?:libQt6|Qt6?)(\w+)", file.name)  # libQt6Core.so.6, QtCore.framework
        if part is not None and part[1] not in _LIBRARIES:
            _remove(file)
    for file in list((qt / "plugins").glob("*/*")):
        stem = file.name.partition(".")[0].removeprefix("lib")
        if stem not in _PLUGINS.get(file.parent.name, ()):
            _remove(file)
    for folder in list((qt / "plugins").glob("*")):
        if not any(folder.iterdir()):
            folder.rmdir()
    for file in list((qt / "translations").glob("*")):
        if file.name not in {f"qtbase_{language}.qm" for language in languages}:
            _remove(file)


def missing_qt(site: Path) -> list[str]:
    """Return which of Qt's libraries those that stay are linked with and do not find. Linux alone."""
    missing: set[str] = set()
    for file in (site / "PySide6").rglob("*.so*"):
        if libraries.is_elf(file):
            found = libraries.needed(file)
            missing |= {n for n, where in found.items() if where is None and "Qt6" in n}
    return sorted(missing)


def bundle_for_x11(site: Path) -> list[Path]:
    """Put beside Qt what it needs on Linux for X11 and Wayland, which a desktop may lack.

    libxcb-cursor is the best known: Qt needs it since 6.5, and Debian 12's desktops lack it.
    """
    qt = site / "PySide6" / "Qt"
    wanted = [*(qt / "plugins").rglob("*.so"), *(qt / "lib").glob("libQt6*")]
    files = [
        file for file in wanted if "gtk3" not in file.name
    ]  # GTK is the desktop's, or not there
    return libraries.bundle(files, qt / "lib", point=False)


def _remove(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        shutil.rmtree(file)
    else:
        file.unlink(missing_ok=True)
