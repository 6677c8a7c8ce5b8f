"""The window opens at once and needs nothing heavy."""

import os
import subprocess
import sys
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
    "api.schema",
    "api.benching",
    "api.doctor",
    "api.hub",
    "api.openai",
    "api.other_servers",
    "api.pausing",
    "api.politeness",
    "api.tagged_reply",
    "api.weights",
    "model",
    "model.formats",
    "model.schemes",
    "system",
    "system.autostart",
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
application.preferences.change(mode="master")
application.start()
qapp.processEvents()
application.close()
print(*sorted(sys.modules))
"""


def test_it_opens_without_anything_heavy(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "core"), str(ROOT / "app"))),
    }
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,  # ends a hang
        check=True,
    )
    names = result.stdout.split()
    ours = {name.removeprefix("potluck.") for name in names if name.startswith("potluck.")}
    assert ours <= ALLOWED
    heavy = {"torch", "numpy", "starlette", "asyncio", "zeroconf", "cryptography"}
    of_the_background = {"ssl", "http.client", "potluck.client"}
    assert (heavy | of_the_background).isdisjoint(names)
    of_pages = {"cluster", "models", "settings", "about", "first_run", "doctor", "qr", "worker"}
    assert {f"potluck_app.views.{name}" for name in of_pages}.isdisjoint(names)
    assert "importlib.metadata" not in names
