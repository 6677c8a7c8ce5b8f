"""Dialogs: where the keyboard begins, and how long ones are scrolled."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from potluck_app.views.home.computer_actions import Question
from potluck_app.views.widgets.controls import button, label, rule
from potluck_app.views.widgets.dialogs import Confirmation, Dialog

pytestmark = pytest.mark.qt


@pytest.fixture
def parent(qtbot: QtBot) -> QWidget:
    parent = QWidget()
    qtbot.addWidget(parent)
    parent.show()
    return parent


def long_dialog(parent: QWidget) -> Dialog:
    """A dialog that is longer than any screen, with a button among its texts."""
    dialog = Dialog(parent, "long", "Long")
    copy = button("Copy", "copy", lambda: None)
    lines: list[QLabel] = [label(f"line {number}") for number in range(300)]
    dialog.fill(copy, *lines, buttons=(button("Close", "close", dialog.reject),))
    dialog.open()
    return dialog


def test_the_last_button_ends_where_the_parts_above_it_end(parent: QWidget) -> None:
    edge = rule()
    dialog = Dialog(parent, "edge", "Edge")
    close = button("Close", "close", dialog.reject)
    dialog.fill(edge, buttons=(close,))
    dialog.open()

    ends = [part.mapTo(dialog, part.rect().topRight()).x() for part in (edge, close)]
    assert ends[0] == ends[1]


def test_a_dialog_is_as_wide_as_its_buttons_need(parent: QWidget) -> None:
    words = "Lend this computer to everybody in this home"
    sure = Confirmation(parent, title="Lend it?", text="It helps.", action=words, keep=words)
    sure.open()

    assert sure.width() > 400
    assert all(each.width() >= each.sizeHint().width() for each in (sure.no, sure.yes))


def test_a_dialog_to_read_begins_with_the_button_that_closes_it(parent: QWidget) -> None:
    dialog = long_dialog(parent)

    begun = dialog.focusWidget()
    assert begun is not None
    assert begun.objectName() == "close"


def test_a_question_begins_in_its_field_and_a_confirmation_with_what_keeps_all(
    parent: QWidget,
) -> None:
    asked = Question(parent, title="Name", text="", value="Den", action="Rename", read=str)
    asked.open()
    assert asked.focusWidget() is asked.value
    asked.reject()

    sure = Confirmation(parent, title="Delete it?", text="It is gone.", action="Delete")
    sure.open()
    assert sure.focusWidget() is sure.no


def test_the_keys_for_pages_scroll_a_long_dialog_from_any_of_its_buttons(
    parent: QWidget, qtbot: QtBot
) -> None:
    dialog = long_dialog(parent)
    bar = dialog.findChildren(QScrollArea)[0].verticalScrollBar()
    close = dialog.focusWidget()
    assert close is not None

    qtbot.keyClick(close, Qt.Key.Key_PageDown)
    below = bar.value()
    qtbot.keyClick(close, Qt.Key.Key_End)
    end = bar.value()
    qtbot.keyClick(close, Qt.Key.Key_Home)

    assert 0 < below < end == bar.maximum()
    assert bar.value() == 0
