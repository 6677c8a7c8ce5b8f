"""What the tests of the window share: one application, a theme, a scripted backend, a chat."""

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import TOKEN, Server, serving
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend
from started import Make

from potluck.system.autostart import Autostart, FilePlace, desktop_entry, entry_command
from potluck_app.application import Application
from potluck_app.chats.history import History
from potluck_app.http import Endpoint
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow

PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def qapp(qapp: QApplication) -> QApplication:
    qapp.setQuitOnLastWindowClosed(False)
    return qapp


class PatientBot(QtBot):
    """Waits as long as a busy computer may take; what is waited for comes much sooner."""

    def waitUntil(self, callback: Callable[[], bool | None], *, timeout: int = PATIENCE_MS) -> None:
        super().waitUntil(callback, timeout=timeout)


@pytest.fixture
def qtbot(qapp: QApplication, request: pytest.FixtureRequest) -> QtBot:
    return PatientBot(request)


@pytest.fixture(autouse=True)
def _delete_what_was_closed(qapp: QApplication) -> None:
    # No event loop runs between two tests, and only one would delete the last test's windows.
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_for_other_threads_and_modules(qapp: QApplication) -> Iterator[None]:
    # As `potluck_app.garbage` does for the program: Qt objects must go in this thread. It stays so, since
    # any later test of this process may be the one in which they are collected.
    gc.disable()
    yield
    # pytest-qt processes events after every later test of this process, also of modules without windows.
    left = QApplication.topLevelWidgets()
    for widget in left:
        widget.deleteLater()
    del left
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    gc.collect()
    QCoreApplication.processEvents()


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


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    """Where this computer keeps what it starts."""
    return FilePlace(tmp_path / "autostart" / "potluck.desktop", desktop_entry, entry_command)


@pytest.fixture
def make(qapp: QApplication, tmp_path: Path, server: Server, place: FilePlace) -> Iterator[Make]:
    made: list[Application] = []

    def build(
        *, tray: bool = False, node: bool = True, own_command: tuple[str, ...] | None = None
    ) -> Application:
        def find() -> Endpoint:
            if not node:
                raise OSError("There is no node.")
            return Endpoint(port=server.port, token=TOKEN)

        application = Application(
            qapp,
            data_folder=tmp_path / "data",
            config_folder=tmp_path / "config",
            find_or_start=find,
            autostart=lambda: Autostart(place, [sys.executable, "-m", "potluck_app"]),
            own_command=None if own_command is None else lambda: own_command,
            is_tray_available=lambda: tray,
        )
        made.append(application)
        return application

    yield build
    for application in made:
        application.close()
        for window in (application.main, application.worker):
            if window is not None:
                window.deleteLater()
        application.deleteLater()
