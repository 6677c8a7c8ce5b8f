"""A whole application, started by a test."""

from collections.abc import Callable

from fake_backend import Server
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from potluck.api.values.schema import Listener
from potluck_app.application import Application

Make = Callable[..., Application]


def connect(application: Application, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: application.backend.connection == "connected")


def click(window: QWidget | None, name: str, qtbot: QtBot) -> None:
    assert window is not None
    found = window.findChild(QPushButton, name)
    assert found is not None
    qtbot.mouseClick(found, Qt.MouseButton.LeftButton)


def going_on(make: Make, server: Server, qtbot: QtBot, *, tray: bool) -> Application:
    """Return a program whose window is closed while other programs can use the model."""
    application = make(tray=tray)
    application.preferences.change(mode="master")
    application.start()
    server.update(listeners=(Listener(host="127.0.0.1", port=8000),))
    backend = application.backend
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.listeners))
    assert application.main is not None
    application.main.close()
    return application
