"""A window that is killed in the middle of a reply has lost nothing when it is opened again."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fake_backend import TOKEN, Server
from pytestqt.qtbot import QtBot

from potluck_app.chats.history import History
from potluck_app.chats.values import Draft

pytestmark = [pytest.mark.qt, pytest.mark.net, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PIECES = tuple(f"word{n} " for n in range(4000))

WINDOW = """
import sys
from pathlib import Path
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from potluck_app.application import Application
from potluck_app.chats.values import Draft
from potluck_app.http import Endpoint

folder, endpoint = Path(sys.argv[1]), Endpoint(port=int(sys.argv[2]), token=sys.argv[3])
qapp = QApplication([])
application = Application(
    qapp, data_folder=folder, config_folder=folder, find_or_start=lambda: endpoint
)
application.preferences.change(mode="master")
application.start()

def begin():
    application.chat.send("How many walnuts?")
    application.chat.set_draft(Draft(text="And then?"))

application.backend.state_changed.connect(begin, Qt.ConnectionType.SingleShotConnection)
qapp.exec()
"""


@pytest.fixture
def window(tmp_path: Path, server: Server) -> Iterator[subprocess.Popen[bytes]]:
    server.backend.script, server.backend.endless = PIECES, True
    environ = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "PYTHONPATH": os.pathsep.join((str(ROOT / "core"), str(ROOT / "app"))),
    }
    command = [sys.executable, "-c", WINDOW, str(tmp_path), str(server.port), TOKEN]
    process = subprocess.Popen(command, env=environ)
    yield process
    process.kill()
    process.wait()


def on_disk(path: Path) -> tuple[str, str]:
    """Return the reply so far and the draft, as another program reads them meanwhile."""
    if not path.exists():
        return "", ""
    with closing(sqlite3.connect(path)) as database:
        try:
            text = database.execute("SELECT text FROM messages WHERE role = 'assistant'").fetchone()
            draft = database.execute("SELECT draft FROM drafts").fetchone()
        except sqlite3.OperationalError:
            return "", ""  # the tables are not made yet
    return text[0] if text else "", draft[0] if draft else ""


def test_a_killed_window_has_the_question_the_reply_so_far_and_the_draft(
    window: subprocess.Popen[bytes], tmp_path: Path, qtbot: QtBot
) -> None:
    path = tmp_path / "chats.sqlite"
    qtbot.waitUntil(lambda: all(on_disk(path)), timeout=30_000)
    seen, _ = on_disk(path)

    window.kill()  # SIGKILL: no code of the window runs after it
    window.wait()

    history = History(path)
    assert history.open() == ""
    (summary,) = history.summaries()
    conversation = history.load(summary.id)
    assert conversation is not None
    question, reply = conversation.messages
    assert (summary.title, question.text) == ("How many walnuts?", "How many walnuts?")
    assert reply.status == "stopped"
    assert reply.text.startswith(seen)
    assert "".join(PIECES).startswith(reply.text)
    assert reply.stats is not None
    assert history.draft(summary.id) == Draft(text="And then?")
    assert {hit.message for hit in history.search("walnuts")} == {None, question.id}
    assert [hit.message for hit in history.search("word0")] == [reply.id]
    history.close()
