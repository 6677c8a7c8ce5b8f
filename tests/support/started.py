"""A whole application, started by a test."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot

from potluck_app.application import Application

Make = Callable[..., Application]


def connect(application: Application, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: application.backend.connection == "connected")


def click(window: QWidget | None, name: str, qtbot: QtBot) -> None:
    assert window is not None
    found = window.findChild(QPushButton, name)
    assert found is not None
    qtbot.mouseClick(found, Qt.MouseButton.LeftButton)
