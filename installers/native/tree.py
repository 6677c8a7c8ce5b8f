"""The tree: a Python, everything that Potluck needs but torch, and Potluck. The same on each system.

    TREE/python/        the interpreter, and its site-packages with Potluck
    TREE/bin/           launchers: `potluck` and `potluck-window`
    TREE/share/         icons
    TREE/potluck.json   what kind of package this is, and where newer ones are told of

It can be moved as a whole. Nothing is written into it once it is installed: bytecode is compiled here,
and is not compared with its source when it is loaded, since neither changes.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode

from native import interpreter, launchers, pictures, pruning, requirements
from native.project import (
    ROOT,
    BuildError,
    epoch,
    machine,
    release_index,
    release_keys,
    version,
)

INFO = "potluck.json"


def build(target: Path, *, this_python: bool = False) -> Path:
    """Make the tree for this machine.

    Args:
        target: its folder; what is there already is deleted.
        this_python: take the Python that runs this; see `interpreter.py`.
    """
    if not requirements.is_current():
        raise BuildError(
            "installers/locks/app.txt was made from other dependencies than pyproject.toml names."
            " Make it anew: python3 installers/build.py lock"
        )
    if target.exists():
        shutil.rmtree(target)
    python_home = target / "python"
    python = interpreter.install(python_home, this_python=this_python)
    site = interpreter.site_packages(python_home)
    install_packages(python, site)
    pruning.prune(site, languages=languages())
    if sys.platform == "linux":
        pruning.bundle_for_x11(site)
        if missing := pruning.missing_qt(site):
            raise BuildError(f"Too much of Qt was left out: {', '.join(missing)} is missing.")
    launchers.write(target)
    pictures.draw(python, target / "share" / "icons")
    shutil.copy(ROOT / "LICENSE", target / "LICENSE")
    write_info(target, kind="tree")
    compile_all(interpreter.library_folder(python_home))
    check(python)
    return target


def install_packages(python: Path, site: Path) -> None:
    """Install what the lock names, each file verified by its hash, and then Potluck itself."""
    site.mkdir(exist_ok=True)
    command = [*requirements.uv(), "pip", "install", "--python", str(python), "--target", str(site)]
    command += [
        "--no-config",
        "--link-mode",
        "copy",
        "--only-binary",
        ":all:",
        "--no-deps",
        "--quiet",
    ]
    _run([*command, "--require-hashes", "--requirement", str(requirements.LOCK)])
    with tempfile.TemporaryDirectory() as temporary:
        environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
        words = ["build", "--wheel", "--quiet", "--out-dir", temporary, str(ROOT)]
        _run([*requirements.uv(), *words], environ)
        wheels = [str(file) for file in Path(temporary).glob("potluck-*.whl")]
        _run([*command, *wheels])


def write_info(tree: Path, *, kind: str) -> None:
    """Write what the tree is: for the program, which starts itself anew by the launchers."""
    updates = {"index": release_index(), "keys": release_keys()}
    info = {"version": version(), "kind": kind, "machine": machine(), "updates": updates}
    (tree / INFO).write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")


def compile_all(folder: Path) -> None:
    """Compile each module; a path in a traceback begins at the folder, wherever the tree lies."""
    done = compileall.compile_dir(
        folder,
        quiet=2,
        force=True,
        stripdir=str(folder.parent),
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        workers=1,  # the order of what is interned stays the same, and so do the files
    )
    if not done:  # some packages have templates among their modules, which are no Python
        print("    some modules could not be compiled; Python says so when they are used")


def check(python: Path) -> None:
    """Make sure that every module of Potluck that needs no torch can be imported."""
    code = (
        "import potluck.cli, potluck.cluster.serving, potluck.hub.process, potluck_app.application"
    )
    words = [
        python,
        "-I",
        "-B",
        "-c",
        f"{code}; import llguidance, tokenizers, gguf, llvmlite.binding",
    ]
    found = subprocess.run(words, capture_output=True, text=True, env=_bare())
    if found.returncode:
        raise BuildError(f"The tree does not work:\n{found.stderr.strip()}")


def _bare() -> dict[str, str]:
    kept = ("PATH", "SYSTEMROOT", "HOME", "TEMP", "TMP")
    return {name: os.environ[name] for name in kept if name in os.environ}


def languages() -> list[str]:
    """Return the codes of the languages of the window, without English."""
    return sorted(file.stem for file in (ROOT / "assets" / "languages").glob("*.json"))


def _run(command: list[str], environ: dict[str, str] | None = None) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, env=environ)
    if ended.returncode:
        raise BuildError(f"{' '.join(command[:4])} … failed:\n{ended.stderr.strip()}")
