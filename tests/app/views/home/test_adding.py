"""The Cluster page: a computer joins by its digits, its address, or a command."""

import pytest
from fake_backend import computer
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot
from scripted_window import STUDY, ScriptedBackend, home, pairing, study_pc

from potluck.api.values.pairing import Invite
from potluck_app.http import Problem
from potluck_app.views.home.add_computer import AddComputerDialog
from potluck_app.views.home.cards import JoinCardView
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def page(window: MainWindow) -> MainWindow:
    window.go(window.cluster)
    return window


def join_card(window: MainWindow) -> JoinCardView:
    (card,) = window.cluster._joins.values()
    return card


def test_adding_a_computer_is_one_click_once_the_digits_are_there(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(study_pc()))
    assert backend.last("/cluster/pairings").body.target == STUDY  # asked by itself
    assert join_card(page)._text.text() == "Found on your network"

    backend.say(home(study_pc(), pairings=(pairing("confirm"),)))
    assert join_card(page).code.text() == "427 918"
    qtbot.mouseClick(join_card(page).add, LEFT)
    assert backend.last("/cluster/pairings/p1").body.accept is True

    backend.say(home(study_pc(), pairings=(pairing("accepted"),)))
    assert not join_card(page).add.isEnabled()
    backend.say(home(computer("Study PC", "3"), pairings=(pairing("paired"),)))
    assert [card.name.whole_text() for card in page.cluster._computers.values()] == [
        "Desk",
        "Study PC",
    ]
    assert page.cluster._joins == {}


def test_a_computer_is_asked_only_once_and_only_while_the_page_is_seen(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    window.go(window.chat)
    backend.say(home(study_pc()))
    assert "POST /cluster/pairings" not in backend.paths()

    window.go(window.cluster)
    backend.say(home(study_pc()))
    window.go(window.chat)
    window.go(window.cluster)

    assert backend.paths().count("POST /cluster/pairings") == 1


def test_ignoring_a_computer_refuses_it_and_takes_its_card_away(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(study_pc(), pairings=(pairing("confirm"),)))

    qtbot.mouseClick(join_card(page).ignore, LEFT)

    assert backend.last("/cluster/pairings/p1").body.accept is False
    assert page.cluster._joins == {}


def test_a_refusal_is_said_and_can_be_asked_again(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(study_pc(), pairings=(pairing("refused"),)))
    assert join_card(page)._text.text() == "Study PC said no."
    assert join_card(page).add.text() == "Ask again"

    qtbot.mouseClick(join_card(page).add, LEFT)

    assert backend.last("/cluster/pairings").body.target == STUDY


@pytest.fixture
def dialog(page: MainWindow, backend: ScriptedBackend) -> AddComputerDialog:
    backend.say(home())
    return page.cluster.open_add_dialog()


def test_a_computer_is_added_by_its_address(
    dialog: AddComputerDialog, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    qtbot.keyClicks(dialog.address, "10.0.0.7")
    qtbot.keyClick(dialog.address, Qt.Key.Key_Return)
    asked = backend.last("/cluster/pairings")
    assert asked.body.target == "10.0.0.7"

    asked.call.failed.emit(Problem("Nothing answers at 10.0.0.7."))
    assert dialog.address_line.text() == "Nothing answers at 10.0.0.7."
    qtbot.mouseClick(dialog.add, LEFT)
    backend.last("/cluster/pairings").call.done.emit(pairing("asking"))

    assert not dialog.isVisible()


def test_a_computer_that_only_its_address_reaches_gets_its_card(
    page: MainWindow, dialog: AddComputerDialog, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    dialog.address.setText("10.0.0.7")
    qtbot.mouseClick(dialog.add, LEFT)
    backend.last("/cluster/pairings").call.done.emit(pairing("asking"))

    backend.say(home(pairings=(pairing("confirm"),)))
    assert join_card(page).code.text() == "427 918"
    backend.say(home(pairings=(pairing("refused"),)))
    qtbot.mouseClick(join_card(page).add, LEFT)

    assert backend.last("/cluster/pairings").body.target == "10.0.0.7"


def test_a_computer_without_a_screen_gets_a_command(
    dialog: AddComputerDialog, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    qtbot.mouseClick(dialog.make, LEFT)

    backend.last("/cluster/invites").call.done.emit(Invite(token="POT-1", expires_s=600))

    assert dialog.token.text() == "potluck worker --join POT-1"
    assert "10 min" in dialog.token_line.text()
    assert dialog.qr.isVisible()
    dialog._on_not_found(Problem("Nothing answers there. " * 6))
    layout = dialog.layout()
    assert layout is not None
    assert dialog.height() >= layout.heightForWidth(dialog.width())
