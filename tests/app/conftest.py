"""What the tests of the window share: one application, a theme, a scripted backend, a chat."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import Server, serving
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.chats.history import History
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow


@pytest.fixture(scope="session")
def qapp(qapp: QApplication) -> QApplication:
    qapp.setQuitOnLastWindowClosed(False)
    return qapp


@pytest.fixture(autouse=True)
def _delete_what_was_closed(qapp: QApplication) -> None:
    # No event loop runs between two tests, and only one would delete the last test's windows.
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture(scope="module", autouse=True)
def _no_other_thread_collects() -> None:
    # As `potluck_app.garbage` does for the program: Qt objects must go in this thread. It stays so, since
    # any later test of this process may be the one in which they are collected.
    gc.disable()


@pytest.fixture
def theme(qapp: QApplication) -> Theme:
    return Theme(qapp, "light")


@pytest.fixture
def backend(qapp: QApplication) -> Iterator[ScriptedBackend]:
    backend = ScriptedBackend()
    yield backend
    backend.close()


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "chats.sqlite")
    made.open()
    yield made
    made.close()


@pytest.fixture
def chat(backend: ScriptedBackend, history: History) -> Iterator[Chat]:
    chat = Chat(backend, history)
    yield chat
    chat.close()


@pytest.fixture
def preferences(tmp_path: Path) -> PreferencesFile:
    return PreferencesFile(tmp_path / "config" / "window.json")


MakeWindow = Callable[..., MainWindow]


@pytest.fixture
def make_window(
    qtbot: QtBot, theme: Theme, backend: ScriptedBackend, chat: Chat, preferences: PreferencesFile
) -> MakeWindow:
    """A main window over the scripted backend; `first_run=True` before the first choice."""

    def make(
        *,
        first_run: bool = False,
        on_share: Callable[[], object] = lambda: None,
        on_close: Callable[[], bool] = lambda: True,
    ) -> MainWindow:
        if not first_run:
            preferences.change(mode="master")
        window = MainWindow(theme, backend, chat, preferences, on_share=on_share, on_close=on_close)
        qtbot.addWidget(window)
        window.show()
        return window

    return make


@pytest.fixture
def window(make_window: MakeWindow) -> MainWindow:
    return make_window()


@pytest.fixture
def server() -> Iterator[Server]:
    """The real HTTP server of a node, over a scripted one, that ends with the test."""
    with serving() as server:
        yield server
