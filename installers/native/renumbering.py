"""Makes a tree or an AppImage another version, to try updates with what is built already."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from native import appimage, tree
from native.project import BuildError


def site_packages(made: Path) -> Path:
    """Return where the modules of a tree are."""
    return next((made / "python" / "lib").glob("python3*/site-packages"))


def renumber(made: Path, version: str) -> None:
    """Have the program in a tree be this version, and say so.

    Raises:
        BuildError: the tree has no version.
    """
    module = site_packages(made) / "potluck" / "__init__.py"
    text, count = re.subn(
        r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', module.read_text("utf-8")
    )
    if count != 1:
        raise BuildError(f"{module} has no __version__.")
    module.write_text(text, encoding="utf-8")
    recompile(made, [module])
    file = made / tree.INFO
    info = json.loads(file.read_text("utf-8")) | {"version": version}
    file.write_text(json.dumps(info), encoding="utf-8")


def recompile(made: Path, modules: Sequence[Path]) -> None:
    """Compile with the Python of the tree, which compares no bytecode with its source."""
    python = made / "python" / "bin" / "python3"
    mode = "py_compile.PycInvalidationMode.UNCHECKED_HASH"
    code = f"import py_compile, sys\nfor each in sys.argv[1:]: py_compile.compile(each, doraise=True, invalidation_mode={mode})"
    subprocess.run([python, "-I", "-c", code, *modules], check=True)


def newer_appimage(package: Path, version: str, target: Path) -> None:
    """Write an AppImage of this version, which holds what another one does."""
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        subprocess.run([package, "--appimage-extract"], cwd=place, check=True, capture_output=True)
        inside = Path(place) / "squashfs-root"
        made, script = inside / "package" / "tree", inside / "AppRun"
        own: str = json.loads((made / tree.INFO).read_text("utf-8"))["version"]
        renumber(made, version)
        script.write_text(script.read_text("utf-8").replace(own, version), encoding="utf-8")
        asked = subprocess.run([package, "--appimage-offset"], check=True, capture_output=True)
        program = package.read_bytes()[: int(asked.stdout)]
        appimage.join(program, inside, target, level=1)
