"""The window that takes the place of another one: when that one has ended whole, and not before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from potluck_app.chats.history import History

pytestmark = [pytest.mark.qt, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
FIRST = """
import sys
from PySide6.QtCore import QTimer
import potluck_app.__main__ as program
from potluck_app.chats.values import Draft

def no_node(folders):
    raise OSError("there is no node here")

class Watched(program.Application):
    def start(self, **words):
        super().start(**words)
        self.chat.set_draft(Draft(text="And then?"))
        QTimer.singleShot(0, self._open_again)

program.find_or_start = no_node
program.Application = Watched
program._own_command = lambda folders: [sys.executable, "-c", sys.argv[2], sys.argv[1]]
sys.exit(program.main(["--home", sys.argv[1]]))
"""
SECOND = """
import sys
from pathlib import Path
from PySide6.QtCore import QCoreApplication
from potluck.settings import Folders
from potluck_app.single_instance import SingleInstance

qapp = QCoreApplication([])
folders = Folders.of(Path(sys.argv[1]))
print("claimed", SingleInstance(folders.state).claim(), flush=True)
"""


def test_it_has_the_place_of_the_only_window_and_finds_all_that_was_written(tmp_path: Path) -> None:
    paths = os.pathsep.join((str(ROOT / "core"), str(ROOT / "app")))
    environ = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "PYTHONPATH": paths}
    config = tmp_path / "config"
    config.mkdir()
    (config / "window.json").write_text('{"mode": "master"}')

    both = subprocess.run(
        [sys.executable, "-c", FIRST, str(tmp_path), SECOND],
        env=environ,
        capture_output=True,  # it ends when the second one has closed its output, too
        text=True,
        timeout=110,  # ends a hang
        check=False,
    )

    assert (both.returncode, both.stdout) == (0, "claimed True\n"), both.stderr
    history = History(tmp_path / "data" / "chats.sqlite")
    assert history.open() == ""
    assert history.draft("").text == "And then?"
    history.close()
