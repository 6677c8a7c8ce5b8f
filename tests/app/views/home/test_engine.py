"""The card about the engine: shown where it is missing, and nothing is fetched without a click."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QCoreApplication, QPoint, Qt
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.engine import Engine, EngineRequest
from potluck_app import language
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.views.home.engine import EngineCard

pytestmark = pytest.mark.qt

MISSING = Engine(phase="missing", message="It is not installed.", nbytes=200_000_000)
FETCHING = Engine(phase="fetching", message="", nbytes=200_000_000, done=68_000_000, source="attic")


@pytest.fixture
def card(qtbot: QtBot, theme: Theme, backend: ScriptedBackend) -> EngineCard:
    card = EngineCard(theme, backend)
    qtbot.addWidget(card)
    return card


@pytest.fixture
def german(qapp: QCoreApplication) -> Iterator[None]:
    translators = language.use(qapp, "de")
    yield
    for translator in translators:
        qapp.removeTranslator(translator)


@pytest.mark.parametrize("phase", ["own", "ready"])
def test_where_there_is_an_engine_nothing_is_shown(card, backend, phase) -> None:
    backend.say(home(engine=Engine(phase=phase, message="")))
    assert card.isHidden()
    backend.say(home(engine=None))
    assert card.isHidden()


def test_it_offers_what_is_missing_with_its_size(card, backend, qtbot) -> None:
    backend.say(home(engine=MISSING))

    assert not card.isHidden()
    assert "200 MB are fetched once" in card.text.text()
    assert backend.asked == []

    qtbot.mouseClick(card.install, Qt.MouseButton.LeftButton)
    assert backend.last("/cluster/engine").body == EngineRequest(action="install")


def test_what_the_node_refuses_is_said(card, backend, qtbot) -> None:
    backend.say(home(engine=MISSING))
    qtbot.mouseClick(card.install, Qt.MouseButton.LeftButton)

    with qtbot.waitSignal(backend.problem) as said:
        backend.last("/cluster/engine").call.failed.emit(Problem("It is being stopped."))
    assert said.args == ["It is being stopped."]


def test_it_says_how_far_it_is_and_from_whom(card, backend, qtbot) -> None:
    backend.say(home(engine=FETCHING))

    assert card.text.text() == "The engine is being fetched: 34 %, from attic."
    assert card.meter.fraction == pytest.approx(0.34)
    assert card.install.isHidden()
    qtbot.mouseClick(card.stop, Qt.MouseButton.LeftButton)
    assert backend.last("/cluster/engine").body == EngineRequest(action="stop")


def test_what_went_wrong_is_said_and_can_be_tried_again(card, backend) -> None:
    backend.say(home(engine=Engine(phase="failed", message="The disk is full.")))

    assert card.text.text() == "The disk is full."
    assert card.install.text() == "Try again"


def test_a_computer_without_an_engine_is_offered_nothing(card, backend) -> None:
    backend.say(home(engine=Engine(phase="none", message="There is none.")))

    assert card.text.text() == "There is none."
    assert card.install.isHidden()
    assert card.stop.isHidden()


def test_it_speaks_german(german, card, backend) -> None:
    backend.say(home(engine=FETCHING))
    shown = card.text.text()

    assert shown.startswith("Die Engine wird geholt: 34")
    assert shown.endswith("von attic.")


def test_on_a_narrow_card_its_button_is_below_the_text(
    card: EngineCard, backend: ScriptedBackend
) -> None:
    backend.say(home(engine=MISSING))
    for width, is_below in ((380, True), (900, False)):
        card.resize(width, 200)
        QCoreApplication.processEvents()
        layout = card.layout()
        assert layout is not None
        layout.activate()
        below = card.text.mapTo(card, card.text.rect().bottomLeft()).y()
        assert (card.install.mapTo(card, QPoint()).y() >= below) is is_below
