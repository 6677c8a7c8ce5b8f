"""The part of the Settings page about newer versions: nothing happens without a click."""

import time

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QStackedWidget, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

import potluck
from potluck.api.values.schema import ClusterState
from potluck.api.values.update import HomesVersion, Update, UpdateRequest
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.viewmodels.pace import Pace
from potluck_app.views.options.update import UpdateCard
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.dialogs import Confirmation

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
    parts = (*card._actions, card.allowed, card.meter)
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


def test_how_fast_it_comes_is_said_as_soon_as_that_is_known(card: UpdateCard) -> None:
    now = [0.0]
    card._pace = Pace(lambda: now[0])
    coming = Update(phase="fetching", message="", nbytes=100 * 10**6, done=0)
    card.show_state(saying(coming))
    assert card.pace.isHidden()

    now[0] = 5.0
    card.show_state(saying(msgspec.structs.replace(coming, done=20 * 10**6)))
    assert card.pace.text() == "4 MB/s · 20 s left"
    card.show_state(saying(Update(phase="trying", message="It is tried.")))

    assert card.pace.isHidden()


def test_what_went_wrong_is_said_and_can_be_tried_again(card: UpdateCard) -> None:
    card.show_state(saying(msgspec.structs.replace(OFFERED, failed=True, message="It is damaged.")))

    assert card.text.text() == "It is damaged."
    assert card.install.text() == "Try again"
    assert shown(card) == {"look", "install", "allowed"}


def test_the_version_before_can_be_gone_back_to(card: UpdateCard) -> None:
    card.show_state(saying(Update(phase="quiet", message="Newest.", before="1.0.0")))
    assert "back" in shown(card)


UPDATED = Update(phase="quiet", message="Newest.", before="1.0.0")


def test_a_window_that_is_older_than_the_node_says_what_to_do(card: UpdateCard) -> None:
    card.show_state(saying(UPDATED, version="2.0.0"))

    assert "Close it and open it again." in card.text.text()
    assert shown(card) == {"back", "allowed"}


def test_a_node_that_is_older_than_the_window_is_restarted(
    opening: "Opening", backend: ScriptedBackend, qtbot: QtBot
) -> None:
    card = opening.card
    card.show_state(saying(UPDATED, version="0.0.1"))

    assert "the older 0.0.1 still runs" in card.text.text()
    assert shown(card) == {"restart", "back", "allowed"}
    qtbot.mouseClick(card.restart, Qt.MouseButton.LeftButton)
    assert not backend.asked
    qtbot.mouseClick(card.findChildren(Confirmation)[-1].yes, Qt.MouseButton.LeftButton)
    assert backend.last("/cluster/shutdown")


def test_a_version_is_not_seen_while_the_card_says_something_else(opening: "Opening") -> None:
    seen: list[str] = []
    opening.card.seen.connect(seen.append)

    opening.card.show_state(saying(OFFERED, version="1.9.0"))

    assert not seen


class Opening:
    """A card that can open the window again, and how often it did, beside another page."""

    def __init__(self, theme: Theme, backend: ScriptedBackend, qtbot: QtBot) -> None:
        self.opened = 0
        self.card = UpdateCard(theme, backend, self._open)
        self.page, self.settings, self.other = QStackedWidget(), QWidget(), QWidget()
        qtbot.addWidget(self.page)
        vbox(self.card, parent=self.settings)
        self.page.addWidget(self.settings)
        self.page.addWidget(self.other)
        self.page.show()

    def _open(self) -> None:
        self.opened += 1


@pytest.fixture
def opening(theme: Theme, backend: ScriptedBackend, qtbot: QtBot) -> Opening:
    return Opening(theme, backend, qtbot)


def test_such_a_window_opens_again_by_a_click(opening: Opening, qtbot: QtBot) -> None:
    opening.card.show_state(saying(UPDATED, version="2.0.0"))
    assert opening.opened == 0  # nobody has asked for the update here

    qtbot.mouseClick(opening.card.open_again, Qt.MouseButton.LeftButton)

    assert opening.opened == 1


@pytest.mark.parametrize("asked", ["install", "back"])
def test_the_window_that_asked_for_another_version_opens_again_by_itself_once(
    opening: Opening, asked: str
) -> None:
    card = opening.card
    card.show_state(saying(msgspec.structs.replace(OFFERED, before="1.0.0")))
    (card.install if asked == "install" else card.back).click()
    card.show_state(saying(Update(phase="switching", message="It starts again.")))
    card.show_state(None)  # the node is away
    assert opening.opened == 0

    for _ in range(2):
        card.show_state(saying(UPDATED, version="2.0.0"))

    assert opening.opened == 1


@pytest.mark.parametrize("end", ["failed", "stopped", "refused", "never begun"])
def test_an_update_that_came_to_nothing_opens_no_window_later(
    opening: Opening, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    card = opening.card
    card.show_state(saying(OFFERED))
    card.install.click()
    asked = backend.last("/cluster/update").call
    if end == "refused":
        asked.failed.emit(Problem("There is no version before this one."))
    elif end == "never begun":
        later = time.monotonic() + 60
        monkeypatch.setattr(time, "monotonic", lambda: later)
        card.show_state(saying(OFFERED))
    else:
        card.show_state(saying(Update(phase="fetching", message="")))
        if end == "stopped":
            card.stop.click()
        else:
            card.show_state(saying(msgspec.structs.replace(OFFERED, failed=True)))

    card.show_state(saying(UPDATED, version="2.0.0"))  # days later, by the main computer

    assert opening.opened == 0
    assert "open-again" in shown(card)


def test_a_person_who_has_gone_to_another_page_is_not_interrupted(opening: Opening) -> None:
    card = opening.card
    card.show_state(saying(OFFERED))
    card.install.click()
    opening.page.setCurrentWidget(opening.other)

    card.show_state(saying(UPDATED, version="2.0.0"))

    assert opening.opened == 0
    assert "open-again" in shown(card)


def test_a_version_that_is_offered_is_seen_when_the_card_is(opening: Opening) -> None:
    seen: list[str] = []
    opening.card.seen.connect(seen.append)
    opening.page.setCurrentWidget(opening.other)
    opening.card.show_state(saying(OFFERED))
    assert not seen

    opening.page.setCurrentWidget(opening.settings)

    assert seen == ["2.0.0"]


def test_where_potluck_cannot_update_itself_it_says_how(card: UpdateCard) -> None:
    card.show_state(saying(Update(phase="manual", message="Update it there: git pull.")))

    assert "git pull" in card.text.text()
    assert shown(card) == set()
    assert card._buttons.isHidden()  # no empty room below the sentence
    assert card.text.textInteractionFlags() == Qt.TextInteractionFlag.TextSelectableByMouse
    card.show_state(saying(OFFERED))
    assert card.text.textInteractionFlags() == Qt.TextInteractionFlag.NoTextInteraction


def test_the_other_computers_are_named_with_what_they_do(card: UpdateCard) -> None:
    others = (HomesVersion(name="attic", version="1.0.0", message="It asks its owner."),)
    card.show_state(saying(msgspec.structs.replace(OFFERED, computers=others)))

    assert card.others.text() == "attic: 1.0.0 · It asks its owner."
