#!/usr/bin/env python3
"""Start Potluck from a checkout, on a machine with Python and nothing else.

    python3 installers/run.py               the window; without a display, `potluck demo`
    python3 installers/run.py WORDS...      `potluck WORDS...`
    python3 installers/run.py test ...      the test suite; further words go to pytest
    python3 installers/run.py lint          formatting, lint, types and import contracts

The first start makes `.venv` beside `pyproject.toml` and installs into it, in steps. A finished step
is written to a stamp file, so the next start does nothing but begin, and an interrupted one goes on
where it stopped. Two starts at once take turns. Standard library only.
"""

from __future__ import annotations  # an older Python must live to be told that it is too old

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lock import exclusive
from machine import (
    QT_LIBRARIES,
    X11_LIBRARIES,
    draws_on_x11,
    has_display,
    missing_libraries,
    nvidia_gpus,
    pip_version,
    torch_variant,
    venv_version,
)
from terminal import SetupError, explain, run_logged, say

MINIMUM_PYTHON = (3, 11)
RAW_PROGRESS_PIP = (24, 1)  # the first that says how far a download is
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "setup.log"
STAMPS = VENV / "potluck-setup.json"
LOCK = ROOT / ".venv.lock"  # beside it: a new environment begins by deleting the old

# PyTorch's own indexes, as its "Get started" page names them. What PyPI holds is CUDA for Linux (3 GB)
# and CPU for Windows; a local version such as 2.13.0+cpu wins over PyPI's 2.13.0 when both are offered.
TORCH_INDEX = "https://download.pytorch.org/whl/"
INDEX_TIMEOUT_S = 5


@dataclass(frozen=True)
class Step:
    """One part of the set-up. It is done again when its key is no longer the one in the stamp file."""

    name: str
    title: str
    key: str
    run: Callable[[], None]


def group_requirements(groups: Mapping[str, Sequence[object]], name: str) -> list[str]:
    """The requirements of a dependency group, its included groups in place (PEP 735)."""
    found: list[str] = []
    for item in groups[name]:
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            found += group_requirements(groups, item["include-group"])
    return found


def key_of(*parts: object) -> str:
    """A short hash of what a step depends on."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


# --- doing --------------------------------------------------------------------------------------


def venv_python() -> Path:
    """The environment's own Python."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip(*words: str | Path) -> None:
    """Run the environment's pip.

    Raises:
        SetupError: it failed; nothing half installed is left.
    """
    # A config of the user may say --user or --target, which a virtual environment refuses.
    environ = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"}
    try:
        run_logged([venv_python(), "-m", "pip", *words], LOG, environ)
    finally:
        drop_half_installed()


def pip_install(*words: str | Path) -> None:
    """Install with pip, showing how far each download is where this pip can say it."""
    raw = (pip_version(venv_python()) or ()) >= RAW_PROGRESS_PIP
    pip("install", *(["--progress-bar", "raw"] if raw else []), *words)


def drop_half_installed() -> None:
    """Make pip forget packages whose installation was cut off, so that it installs them again.

    pip writes INSTALLER when all files of a package are there; before that it believes in a package
    as soon as its metadata exists.
    """
    for packages in site_packages():
        for folder in packages.glob("*.dist-info"):
            if not (folder / "INSTALLER").exists():
                shutil.rmtree(folder)


def site_packages() -> list[Path]:
    """Where the environment keeps its packages."""
    return [*VENV.glob("lib/python*/site-packages"), *VENV.glob("Lib/site-packages")][:1]


def make_venv() -> None:
    """Make `.venv`, or keep the one that is there when its Python works; then see to its pip."""
    version = venv_version(VENV, venv_python())
    if version is None:  # none, or its Python is gone or another than it was made for
        need_ensurepip(Path(sys.executable))
        if VENV.exists():
            shutil.rmtree(VENV)
        VENV.mkdir()
        run_logged([sys.executable, "-m", "venv", VENV], LOG)
    elif version < MINIMUM_PYTHON:
        raise SetupError(
            f"The environment in {VENV} is one of Python {version[0]}.{version[1]}, and Potluck needs"
            " 3.11 or newer. Delete or rename that folder, then start again."
        )
    drop_half_installed()
    if pip_version(venv_python()) is None:  # made by a tool that needs none, or cut off
        need_ensurepip(venv_python())
        run_logged([venv_python(), "-m", "ensurepip", "--upgrade"], LOG)
    if (pip_version(venv_python()) or ()) < RAW_PROGRESS_PIP:
        try:
            pip("install", "--upgrade", "pip")
        except SetupError:
            say("    pip could not be brought up to date; going on with the one that is there")


def need_ensurepip(python: Path) -> None:
    """See that this Python can install pip; Debian keeps the module in a package of its own."""
    check = "import sys; print(sys.version_info[1]); import ensurepip"
    found = subprocess.run([python, "-c", check], capture_output=True, text=True)
    if found.returncode != 0:
        apt_install({"the module ensurepip": f"python3.{found.stdout.strip()}-venv"})


def apt_install(missing: Mapping[str, str]) -> None:
    """Install the Debian packages of missing things, or say which they are."""
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


def install_torch(requirement: str) -> None:
    """Install the build of torch that suits this machine's GPU, system and drivers."""
    if platform.system() == "Darwin" and platform.machine() == "x86_64":
        raise SetupError(
            "PyTorch is no longer made for Macs with an Intel processor, so this Mac cannot compute"
            " layers. Use Potluck on a Mac with an Apple processor, on Windows or on Linux."
        )
    variant = torch_variant(platform.system(), platform.machine(), nvidia_gpus())
    words = [requirement]
    if variant is not None:
        index = f"{TORCH_INDEX}{variant}"
        try:
            urllib.request.urlopen(f"{index}/torch/", timeout=INDEX_TIMEOUT_S).close()  # noqa: S310 (https)
            words += ["--extra-index-url", index]
        except (OSError, urllib.error.URLError):
            say(f"    PyTorch's index for {variant} cannot be reached; taking what pip finds")
    pip_install(*words)
    if platform.system() == "Windows":
        add_windows_runtime()


def add_windows_runtime() -> None:
    """Install Microsoft's C++ runtime where torch needs it: a clean Windows lacks it (WinError 126)."""
    check = [venv_python(), "-c", "import torch"]
    if subprocess.run(check, capture_output=True).returncode == 0:
        return
    pip_install("msvc-runtime")
    if subprocess.run(check, capture_output=True).returncode != 0:
        raise SetupError(
            "PyTorch does not start on this Windows. Install the Microsoft Visual C++"
            " Redistributable (x64) from Microsoft's site, then start again."
        )


# --- the steps ----------------------------------------------------------------------------------


def needed_steps(words: Sequence[str], *, display: bool, x11: bool = False) -> list[Step]:
    """The steps that must be done before these words can be run, in order."""
    import tomllib  # not there before Python 3.11

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies: list[str] = project["project"]["dependencies"]
    torch = next(d for d in dependencies if d.startswith("torch"))
    steps = [
        Step("venv", "a Python environment in .venv", "1", make_venv),
        Step("torch", "PyTorch", key_of(torch), lambda: install_torch(torch)),
        Step(
            "potluck",
            "Potluck and what it needs",
            key_of(dependencies, project["project"]["scripts"], ROOT),
            lambda: pip_install("--editable", ROOT),
        ),
    ]
    command = words[0] if words else ("window" if display else "demo")
    for group in {"test": ["test"], "lint": ["test", "lint"]}.get(command, []):
        found = group_requirements(project["dependency-groups"], group)
        title = "the tools of the tests" if group == "test" else "the tools of the checks"
        steps.append(Step(group, title, key_of(found), lambda found=found: pip_install(*found)))
    if platform.system() == "Linux" and command in ("window", "test"):
        steps.append(qt_step("qt", "libraries for windows", QT_LIBRARIES))
    if platform.system() == "Linux" and command == "window" and x11:
        steps.append(qt_step("x11", "libraries for windows on X11", X11_LIBRARIES))
    return steps


def qt_step(name: str, title: str, libraries: Mapping[str, str]) -> Step:
    """The step that installs what is missing of the system libraries that Qt loads."""

    def install() -> None:
        missing = missing_libraries(libraries)
        if missing:
            apt_install(missing)

    return Step(name, title, key_of(libraries), install)


def read_stamps() -> dict[str, str]:
    """The keys of the steps that are done, by name; none where `.venv` is not whole."""
    if venv_version(VENV, venv_python()) is None:
        return {}  # deleted, or the Python that it was made from is gone or replaced
    try:
        stamps = json.loads(STAMPS.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def write_stamps(stamps: Mapping[str, str]) -> None:
    """Write the stamp file, whole or not at all."""
    half = STAMPS.with_suffix(".part")
    half.write_text(json.dumps(stamps), encoding="utf-8")
    half.replace(STAMPS)


def undone(steps: Sequence[Step]) -> list[Step]:
    """The steps still to do: all of them where the first, the environment, is not done."""
    stamps = read_stamps()
    if stamps.get(steps[0].name) != steps[0].key:
        return list(steps)
    return [step for step in steps if stamps.get(step.name) != step.key]


def set_up(steps: Sequence[Step]) -> None:
    """Do what is not done yet, after any other start that is doing so.

    Raises:
        SetupError: a step failed; those before it stay done.
    """
    if not undone(steps):
        return
    with exclusive(LOCK, lambda: say("Another start is setting up Potluck; waiting for it.")):
        todo = undone(steps)  # the other start may have done it
        if todo:
            do(todo)


def do(todo: Sequence[Step]) -> None:
    """Do these steps, and remember each as soon as it is done."""
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


def commands_for(words: Sequence[str], *, display: bool) -> list[list[str]]:
    """What to run with the environment's Python, one after the other."""
    module = [str(venv_python()), "-m"]
    if words and words[0] == "test":
        return [[*module, "pytest", *words[1:]]]
    if words and words[0] == "lint":
        return [
            [*module, "ruff", "format", "--check"],
            [*module, "ruff", "check"],
            [*module, "basedpyright", "--pythonpath", str(venv_python())],
            [str(venv_python().with_name("lint-imports"))],
        ]
    if not words and not display:
        say("There is no display here, so this runs `potluck demo` in the terminal.\n")
        words = ["demo"]
    return [[*module, "potluck", *words]]


def start(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands, all of them; the status is that of the first that failed.

    The last one takes this process' place where the system can do that: its signals and its status
    are then its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL if os.name == "posix" else signal.SIG_IGN)
    *before, last = commands
    failed = [status for command in before if (status := subprocess.run(command).returncode)]
    if os.name == "posix" and not failed:
        os.execv(last[0], list(last))  # noqa: S606 (no shell is meant)
    status = subprocess.run(last).returncode
    return failed[0] if failed else status


def main(words: Sequence[str]) -> int:
    """Set up what is needed, then start; the status is that of what was started."""
    if sys.version_info < MINIMUM_PYTHON:
        say(
            f"Potluck needs Python 3.11 or newer, and this is {platform.python_version()}."
            " Install a newer one, then start this file with it."
        )
        return 1
    display = has_display(platform.system(), os.environ)
    try:
        set_up(needed_steps(words, display=display, x11=draws_on_x11(os.environ)))
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
    return start(commands_for(words, display=display))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
