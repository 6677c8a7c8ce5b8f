"""The window opens at once and needs nothing heavy."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.qt, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "errors",
    "files",
    "ids",
    "settings",
    "reasons",
    "api",
    "api.values.schema",
    "api.values.benching",
    "api.values.doctor",
    "api.values.engine",
    "api.values.gpus",
    "api.values.network",
    "api.values.update",
    "api.values.vitals",
    "api.values.hub",
    "api.events",
    "api.v1.answer_shapes",
    "api.values.errors",
    "api.values.timings",
    "api.values.pairing",
    "api.values.pausing",
    "api.values.politeness",
    "api.v1",
    "api.v1.tagged_reply",
    "api.values",
    "api.values.weights",
    "model",
    "model.formats",
    "model.schemes",
}

PROGRAM = """
import sys
from pathlib import Path
from PySide6.QtWidgets import QApplication
from potluck_app.__main__ import Application

def no_node():
    raise OSError("there is no node here")

qapp = QApplication([])
folder = Path(sys.argv[1])
application = Application(
    qapp, data_folder=folder, config_folder=folder, find_or_start=no_node
)
application.preferences.change(mode=sys.argv[2] or None)
application.start()
qapp.sendPostedEvents()
print(*sorted(sys.modules), flush=True)
application.close()
"""


def modules_of_a_start(folder: Path, mode: str = "") -> set[str]:
    """Return the names of the modules that a window in this mode has read when it is shown."""
    environ = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "core"), str(ROOT / "app"))),
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), mode],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,  # ends a hang
        check=True,
    )
    return set(result.stdout.split())


def of_views(*names: str) -> set[str]:
    """The full names of modules that there are."""
    found = {f"potluck_app.views.{name}" for name in names}
    assert all(find_spec(name) is not None for name in found)
    return found


def test_it_opens_without_anything_heavy(tmp_path: Path) -> None:
    names = modules_of_a_start(tmp_path, "master")
    ours = {name.removeprefix("potluck.") for name in names if name.startswith("potluck.")}
    assert ours <= ALLOWED
    heavy = {"torch", "numpy", "starlette", "asyncio", "zeroconf", "cryptography"}
    of_the_background = {"ssl", "http.client", "potluck.client"}
    assert (heavy | of_the_background).isdisjoint(names)
    pages = of_views("home.cluster", "library.models", "options.settings", "options.about")
    pages |= of_views("first_run", "home.doctor", "worker")
    assert (pages | of_views("conversation.drawer", "widgets.qr")).isdisjoint(names)
    what_can_wait = {"importlib.metadata", "subprocess", "plistlib", "potluck_app.tray"}
    assert what_can_wait.isdisjoint(names)


def test_the_first_start_reads_nothing_of_the_chat_before_the_question_is_shown(
    tmp_path: Path,
) -> None:
    names = modules_of_a_start(tmp_path)
    assert of_views("first_run") <= names
    parts = ("chat", "chat_sidebar", "composer", "transcript", "message")
    of_the_chat = of_views("widgets.prose", *(f"conversation.{part}" for part in parts))
    assert of_the_chat.isdisjoint(names)
    assert "potluck_app.viewmodels.library" not in names


def test_the_command_opens_the_window_without_the_parser_of_the_commands() -> None:
    program = (
        "import sys; from potluck.cli import main\n"
        "try: main([], app='this')\n"  # stands in for the window: a module that only prints
        "finally: print(*sorted(sys.modules))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "core"), "QT_QPA_PLATFORM": "offscreen"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60
    )
    names = result.stdout.split()
    assert "potluck.cli.window" in names
    assert "potluck.cli.parser" not in names
