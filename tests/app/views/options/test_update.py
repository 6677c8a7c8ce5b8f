"""The part of the Settings page about newer versions: nothing happens without a click."""

import msgspec
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

import potluck
from potluck.api.values.schema import ClusterState
from potluck.api.values.update import HomesVersion, Update, UpdateRequest
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.views.options.update import UpdateCard

pytestmark = pytest.mark.qt

OFFERED = Update(phase="offered", message="There is one.", version="2.0.0")


@pytest.fixture
def card(qtbot: QtBot, theme: Theme, backend: ScriptedBackend) -> UpdateCard:
    card = UpdateCard(theme, backend)
    qtbot.addWidget(card)
    return card


def saying(update: Update | None, version: str = potluck.__version__) -> ClusterState:
    state = home(update=update)
    return msgspec.structs.replace(state, node=msgspec.structs.replace(state.node, version=version))


def shown(card: UpdateCard) -> set[str]:
    parts = (card.look, card.install, card.stop, card.back, card.allowed, card.meter)
    return {part.objectName().removeprefix("update-") for part in parts if not part.isHidden()}


def test_a_node_that_says_nothing_of_it_shows_nothing(card: UpdateCard) -> None:
    card.show_state(saying(None))
    assert card.isHidden()


def test_a_new_version_is_offered_and_installed_by_a_click(
    card: UpdateCard, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    card.show_state(saying(OFFERED))

    assert "Potluck 2.0.0 is there" in card.text.text()
    assert shown(card) == {"install", "allowed"}
    qtbot.mouseClick(card.install, Qt.MouseButton.LeftButton)
    assert backend.last("/cluster/update").body == UpdateRequest(action="install")


def test_it_says_whether_potluck_installs_it_by_itself(card: UpdateCard) -> None:
    card.show_state(saying(OFFERED))
    assert "whose owners allow it" in card.text.text()

    card.show_state(saying(msgspec.structs.replace(OFFERED, replaces=False)))
    assert "you install it yourself" in card.text.text()


def test_a_version_that_was_gone_back_from_is_not_offered_as_a_new_one(card: UpdateCard) -> None:
    card.show_state(saying(msgspec.structs.replace(OFFERED, left=True, message="You went back.")))

    assert card.text.text() == "You went back."
    assert shown(card) == {"look", "install", "allowed"}


def test_the_box_is_ticked_by_its_owner_alone(card: UpdateCard, backend: ScriptedBackend) -> None:
    card.show_state(saying(Update(phase="quiet", message="Nothing newer.")))
    assert not card.allowed.isChecked()

    card.allowed.click()

    assert backend.last("/cluster/update").body == UpdateRequest(allowed=True)


def test_the_box_is_as_it_was_where_the_node_refuses(
    card: UpdateCard, backend: ScriptedBackend
) -> None:
    state = saying(Update(phase="quiet", message="Nothing newer."))
    backend.say(state)
    card.show_state(state)
    card.allowed.click()

    backend.last("/cluster/update").call.failed.emit(Problem("Your disk is full."))

    assert not card.allowed.isChecked()


def test_while_it_comes_it_says_from_where_and_can_be_stopped(card: UpdateCard) -> None:
    coming = Update(phase="fetching", message="", nbytes=100, done=25, source="attic")

    card.show_state(saying(coming))

    assert "from attic" in card.text.text()
    assert "stop" in shown(card)


def test_what_went_wrong_is_said_and_can_be_tried_again(card: UpdateCard) -> None:
    card.show_state(saying(msgspec.structs.replace(OFFERED, failed=True, message="It is damaged.")))

    assert card.text.text() == "It is damaged."
    assert shown(card) == {"look", "install", "allowed"}


def test_the_version_before_can_be_gone_back_to(card: UpdateCard) -> None:
    card.show_state(saying(Update(phase="quiet", message="Newest.", before="1.0.0")))
    assert "back" in shown(card)


def test_a_window_that_is_older_than_the_node_says_so(card: UpdateCard) -> None:
    card.show_state(saying(Update(phase="quiet", message="Newest."), version="2.0.0"))
    assert "Close this window and open it again" in card.text.text()


def test_where_potluck_cannot_update_itself_it_says_how(card: UpdateCard) -> None:
    card.show_state(saying(Update(phase="manual", message="Update it there: git pull.")))

    assert "git pull" in card.text.text()
    assert shown(card) == set()


def test_the_other_computers_are_named_with_what_they_do(card: UpdateCard) -> None:
    others = (HomesVersion(name="attic", version="1.0.0", message="It asks its owner."),)
    card.show_state(saying(msgspec.structs.replace(OFFERED, computers=others)))

    assert card.others.text() == "attic: 1.0.0 · It asks its owner."
