"""The first page."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QLabel, QPushButton
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt


def test_it_says_what_this_computer_has(
    make_window: Callable[..., MainWindow], backend: ScriptedBackend
) -> None:
    window = make_window(first_run=True)

    backend.say(home())

    line = window.findChild(QLabel, "first-hardware")
    assert line is not None
    lines = "This computer: Some CPU · 16 GB memory.", "Nothing leaves your home network."
    assert line.text().splitlines() == list(lines)


def test_it_says_what_is_wrong_from_the_beginning(
    make_window: Callable[..., MainWindow], backend: ScriptedBackend
) -> None:
    window = make_window(first_run=True)
    problem = window.findChild(QLabel, "first-problem")
    assert problem is not None
    assert not problem.isVisible()

    backend._set_connection("failed", "Potluck cannot start in the background: the disk is full.")
    assert problem.isVisible()
    assert problem.text() == "Potluck cannot start in the background: the disk is full."

    backend.say(home())
    assert not problem.isVisible()


def test_shortcuts_do_not_pass_the_first_question(
    make_window: Callable[..., MainWindow], qtbot: QtBot
) -> None:
    window = make_window(first_run=True)

    qtbot.keyClick(window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert window.first_run.isVisible()
    start = window.findChild(QPushButton, "first-start")
    assert start is not None
    qtbot.mouseClick(start, Qt.MouseButton.LeftButton)

    assert window.pages.currentWidget() is window.cluster
    assert not window.first_run.isVisible()


def test_sharing_is_one_click(make_window: Callable[..., MainWindow], qtbot: QtBot) -> None:
    shared: list[bool] = []
    window = make_window(first_run=True, on_share=lambda: shared.append(True))
    share = window.findChild(QPushButton, "first-share")
    assert share is not None

    qtbot.mouseClick(share, Qt.MouseButton.LeftButton)

    assert shared == [True]


def test_what_is_wrong_is_seen_in_the_smallest_window(
    make_window: Callable[..., MainWindow], backend: ScriptedBackend
) -> None:
    window = make_window(first_run=True)
    window.resize(480, 560)

    backend._set_connection("failed", "Potluck cannot start in the background: the disk is full.")
    QCoreApplication.processEvents()

    problem = window.findChild(QLabel, "first-problem")
    assert problem is not None
    assert window.rect().contains(problem.mapTo(window, problem.rect().bottomLeft()))
