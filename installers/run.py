#!/usr/bin/env python3
"""Start Potluck from a checkout, on a machine that needs nothing but Python.

    python3 installers/run.py               the window; without a display, `potluck demo`
    python3 installers/run.py WORDS...      `potluck WORDS...`
    python3 installers/run.py test ...      the test suite; the other words go to pytest
    python3 installers/run.py lint          formatting, lint, types and import contracts

The first start makes `.venv` beside `pyproject.toml` and installs into it, in steps. Each finished
step is written to a stamp file: later starts skip it, and an interrupted set-up continues where it
stopped. Two starts at the same time take turns. Uses the standard library only.
"""

from __future__ import annotations  # an older Python must get as far as saying that it is too old

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lock import exclusive
from machine import (
    QT_LIBRARIES,
    X11_LIBRARIES,
    draws_on_x11,
    has_display,
    has_qt,
    missing_libraries,
    pip_version,
    venv_version,
)
from pytorch import install_torch
from terminal import SetupError, explain, run_logged, say

MINIMUM_PYTHON = (3, 11)
RAW_PROGRESS_PIP = (24, 1)  # the first pip that can report the progress of a download
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "setup.log"
STAMPS = VENV / "potluck-setup.json"
LOCK = ROOT / ".venv.lock"  # not inside .venv, which is deleted before a new one is made

NO_QT = (
    "On Linux on Arm, Qt for Python needs glibc 2.39 (as in Debian 13 and Ubuntu 24.04), or a Python before"
    " 3.14. Everything else works in the terminal."
)


@dataclass(frozen=True)
class Step:
    """One part of the set-up. It runs again when its key differs from that in the stamp file."""

    name: str
    title: str
    key: str
    run: Callable[[], None]


def group_requirements(groups: Mapping[str, Sequence[object]], name: str) -> list[str]:
    """Return the requirements of a dependency group, with those of included groups (PEP 735)."""
    found: list[str] = []
    for item in groups[name]:
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found += group_requirements(groups, item["include-group"])
    return found


def key_of(*parts: object) -> str:
    """Return a short hash of everything that a step depends on."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


# --- doing --------------------------------------------------------------------------------------


def venv_python() -> Path:
    """Return the path of the environment's Python."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip(*words: str | Path) -> None:
    """Run the environment's pip.

    Raises:
        SetupError: pip failed; packages that are only half installed are removed.
    """
    # The user's pip config may contain --user or --target, which a virtual environment refuses.
    environ = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    try:
        run_logged([venv_python(), "-m", "pip", *words], LOG, environ)
    finally:
        drop_half_installed()


def pip_install(*words: str | Path) -> None:
    """Install with pip. If this pip can, show the progress of each download."""
    raw = (pip_version(venv_python()) or ()) >= RAW_PROGRESS_PIP
    pip("install", *(["--progress-bar", "raw"] if raw else []), *words)


def drop_half_installed() -> None:
    """Make pip forget packages whose installation was interrupted, so that it installs them again.

    pip writes INSTALLER after all other files of a package. Without this function, a package counts
    as installed as soon as its metadata exists.
    """
    for packages in site_packages():
        for folder in packages.glob("*.dist-info"):
            if not (folder / "INSTALLER").exists():
                shutil.rmtree(folder)


def site_packages() -> list[Path]:
    """Return the folder of the environment's packages, if it exists."""
    return [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")][:1]


def make_venv(minimum: tuple[int, int] = MINIMUM_PYTHON) -> None:
    """Make `.venv`, or keep an existing one whose Python works. Then make sure that it has pip."""
    version = venv_version(VENV, venv_python())
    if version is None:  # there is none, or its Python is missing or has another version
        need_ensurepip(Path(sys.executable))
        if VENV.exists():
            shutil.rmtree(VENV)
        VENV.mkdir()
        run_logged([sys.executable, "-m", "venv", VENV], LOG)
    elif version < minimum:
        raise SetupError(
            f"The environment in {VENV} is one of Python {version[0]}.{version[1]}, and Potluck needs"
            " 3.11 or newer. Delete or rename that folder, then start again."
        )
    drop_half_installed()
    # Another tool made the environment without pip, or its creation was interrupted.
    if pip_version(venv_python()) is None:
        need_ensurepip(venv_python())
        run_logged([venv_python(), "-m", "ensurepip", "--upgrade"], LOG)
    if (pip_version(venv_python()) or ()) < RAW_PROGRESS_PIP:
        try:
            pip("install", "--upgrade", "pip")
        except SetupError:
            say("    pip could not be brought up to date; going on with the one that is there")


def need_ensurepip(python: Path) -> None:
    """Make sure that this Python can install pip. On Debian, ensurepip is a separate package."""
    check = "import sys; print(sys.version_info[1]); import ensurepip"
    found = subprocess.run([python, "-c", check], capture_output=True, text=True)
    if found.returncode != 0:
        apt_install({"the module ensurepip": f"python3.{found.stdout.strip()}-venv"})


def apt_install(missing: Mapping[str, str]) -> None:
    """Install the Debian packages of the missing parts, or raise an error that names them."""
    packages = sorted(set(missing.values()))
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        raise SetupError(
            f"This system lacks {', '.join(missing)}. Install the packages that hold them"
            f" (on Debian they are called {' '.join(packages)}), then start again."
        )
    if os.geteuid() != 0:
        raise SetupError(
            f"This system lacks {', '.join(missing)}. Install them, then start again:\n\n"
            f"    sudo {' '.join(command)}"
        )
    say(f"    installing {' '.join(packages)} (Debian packages)")
    environ = {"DEBIAN_FRONTEND": "noninteractive"}
    LOG.parent.mkdir(exist_ok=True)
    run_logged(["apt-get", "update"], LOG, environ)
    run_logged(command, LOG, environ)


def install_potluck(*, qt: bool) -> None:
    """Install the checkout, with the window where there is a Qt for it."""
    if not qt:
        say(f"    without the window: {NO_QT}")
    pip_install("--editable", f"{ROOT}[window]" if qt else ROOT)


# --- the steps ----------------------------------------------------------------------------------


def needed_steps(
    words: Sequence[str], *, display: bool, x11: bool = False, qt: bool = True
) -> list[Step]:
    """Return the steps that these words need, in order.

    Args:
        words: of the command line.
        display: whether a window can be seen.
        x11: whether that is one on an X server.
        qt: whether there is a Qt for this system.
    """
    import tomllib  # only since Python 3.11

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies: list[str] = project["project"]["dependencies"]
    torch = next(d for d in dependencies if d.startswith("torch"))
    steps = [
        Step("venv", "a Python environment in .venv", "1", make_venv),
        Step(
            "torch",
            "PyTorch",
            key_of(torch),
            lambda: install_torch(torch, venv_python(), pip_install),
        ),
        Step(
            "potluck",
            "Potluck and what it needs",
            key_of(dependencies, project["project"]["scripts"], ROOT, qt),
            lambda: install_potluck(qt=qt),
        ),
    ]
    command = words[0] if words else ("window" if display and qt else "demo")
    if command == "test" and not qt:
        raise SetupError(f"The tests need the window. {NO_QT}")
    for group in {"test": ["test"], "lint": ["test", "lint"]}.get(command, []):
        found = group_requirements(project["dependency-groups"], group)
        title = "the tools of the tests" if group == "test" else "the tools of the checks"
        steps.append(Step(group, title, key_of(found), lambda found=found: pip_install(*found)))
    if platform.system() == "Linux" and command in ("window", "test") and qt:
        steps.append(qt_step("qt", "libraries for windows", QT_LIBRARIES))
    if platform.system() == "Linux" and command == "window" and x11:
        steps.append(qt_step("x11", "libraries for windows on X11", X11_LIBRARIES))
    return steps


def qt_step(name: str, title: str, libraries: Mapping[str, str]) -> Step:
    """Return the step that installs the missing system libraries of Qt."""

    def install() -> None:
        missing = missing_libraries(libraries)
        if missing:
            apt_install(missing)

    return Step(name, title, key_of(libraries), install)


def read_stamps() -> dict[str, str]:
    """Return the keys of the finished steps, by name; {} if `.venv` is broken or missing."""
    if venv_version(VENV, venv_python()) is None:
        return {}  # `.venv` was deleted, or its Python is missing or was replaced
    try:
        stamps = json.loads(STAMPS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def write_stamps(stamps: Mapping[str, str]) -> None:
    """Write the stamp file, as a whole or not at all."""
    half = STAMPS.with_suffix(".part")
    half.write_text(json.dumps(stamps), encoding="utf-8")
    half.replace(STAMPS)


def undone(steps: Sequence[Step]) -> list[Step]:
    """Return the unfinished steps: all, if the first one (the environment) is unfinished."""
    stamps = read_stamps()
    if stamps.get(steps[0].name) != steps[0].key:
        return list(steps)
    return [step for step in steps if stamps.get(step.name) != step.key]


def set_up(steps: Sequence[Step]) -> None:
    """Run the unfinished steps, after waiting for any other start that runs them.

    Raises:
        SetupError: a step failed; the steps before it stay finished.
    """
    if not undone(steps):
        return
    with exclusive(LOCK, lambda: say("Another start is setting up Potluck; waiting for it.")):
        todo = undone(steps)  # the other start may have finished them
        if todo:
            do(todo)


def do(todo: Sequence[Step]) -> None:
    """Run these steps, and write the stamp of each as soon as it is finished."""
    say("Setting up Potluck. This is done once and takes a few minutes.")
    begun = time.monotonic()
    for number, step in enumerate(todo, 1):
        say(f"  {number}/{len(todo)} {step.title}")
        step_begun = time.monotonic()
        step.run()
        write_stamps({**read_stamps(), step.name: step.key})
        say(f"      done in {time.monotonic() - step_begun:.0f} s")
    say(f"Ready after {time.monotonic() - begun:.0f} s.\n")


# --- starting -----------------------------------------------------------------------------------


def commands_for(words: Sequence[str], *, display: bool, qt: bool = True) -> list[list[str]]:
    """Return the commands to run, in order, with the environment's Python."""
    module = [str(venv_python()), "-m"]
    if words and words[0] == "test":
        # Files go to the processes as wholes, because the tests of a file share what they start. Which are long,
        # `tests/conftest.py` knows better than their numbers of tests.
        spread = ["--numprocesses=logical", "--maxprocesses=4", "--dist=loadfile"]
        return [[*module, "pytest", *spread, "--no-loadscope-reorder", *words[1:]]]
    if words and words[0] == "lint":
        return [
            [*module, "ruff", "format", "--check"],
            [*module, "ruff", "check"],
            [*module, "basedpyright", "--pythonpath", str(venv_python())],
            [str(venv_python().with_name("lint-imports"))],
        ]
    if not words and not (display and qt):
        why = NO_QT if display else "There is no display here."
        say(f"{why} This runs `potluck demo` in the terminal.\n")
        words = ["demo"]
    return [[*module, "potluck", *words]]


def start(commands: Sequence[Sequence[str]]) -> int:
    """Run all commands. Return the status of the first that failed, or 0.

    If the system can do that and no command has failed before, the last command replaces this
    process, so its signals and its status are its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL if os.name == "posix" else signal.SIG_IGN)
    *before, last = commands
    failed = [status for command in before if (status := subprocess.run(command).returncode)]
    if os.name == "posix" and not failed:
        os.execv(last[0], list(last))  # noqa: S606 (no shell is needed)
    status = subprocess.run(last).returncode
    return failed[0] if failed else status


def main(words: Sequence[str]) -> int:
    """Set up what is needed, then start the command. Return the status of the command."""
    if sys.version_info < MINIMUM_PYTHON:
        say(
            f"Potluck needs Python 3.11 or newer, and this is {platform.python_version()}."
            " Install a newer one, then start this file with it."
        )
        return 1
    display = has_display(platform.system(), os.environ)
    qt = has_qt(platform.system(), platform.machine(), platform.libc_ver())
    try:
        set_up(needed_steps(words, display=display, x11=draws_on_x11(os.environ), qt=qt))
    except SetupError as error:
        say(f"\n{error}")
        return 1
    except KeyboardInterrupt:
        say("\nStopped. The same command goes on where this one stopped.")
        return 130
    except OSError as error:
        say(f"\n{explain(error)}")
        return 1
    if words and words[0] in ("test", "lint"):
        os.chdir(ROOT)
    return start(commands_for(words, display=display, qt=qt))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
