"""The part of the Settings page about the engine."""

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.engine import Engine, EngineRequest
from potluck_app import language
from potluck_app.http import Problem
from potluck_app.views.options.engine import EnginePart
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton
READY = Engine(
    phase="ready",
    message="The engine is installed.",
    variant="cpu",
    version="2.13.0",
    nbytes=190 * 10**6,
)
PATH = "/cluster/engine"


@pytest.fixture
def part(qtbot: QtBot, backend: ScriptedBackend) -> EnginePart:
    part = EnginePart(backend)
    qtbot.addWidget(part)
    part.show_state(home(engine=READY))
    part.show()
    return part


def agree(part: EnginePart, qtbot: QtBot) -> Confirmation:
    qtbot.mouseClick(part.repair, LEFT)
    question = part.findChildren(Confirmation)[-1]
    qtbot.mouseClick(question.yes, LEFT)
    return question


def test_it_says_which_engine_computes_and_for_what_it_was_made(part: EnginePart) -> None:
    assert part.text.text() == "PyTorch 2.13.0, for processors. The engine is installed."


def test_it_speaks_german(part: EnginePart, qapp: QApplication) -> None:
    translators = language.use(qapp, "de")
    part.show_state(home(engine=READY))
    text = part.text.text()
    for translator in translators:
        qapp.removeTranslator(translator)

    assert text == "PyTorch 2.13.0, für Prozessoren. Die Engine ist installiert."


@pytest.mark.parametrize("phase", ["own", "missing", "fetching", "unpacking", "none"])
def test_only_one_that_was_installed_is_repaired(part: EnginePart, phase: str) -> None:
    part.show_state(home(engine=Engine(phase=phase, message="It is so.")))  # pyright: ignore[reportArgumentType]

    assert part.text.text() == "It is so."
    assert part.repair.isHidden()


def test_a_node_that_does_not_say_has_no_such_part(part: EnginePart) -> None:
    part.show_state(home(engine=None))
    assert part.isHidden()


def test_one_of_the_owners_own_files_is_not_repaired(part: EnginePart) -> None:
    part.show_state(home(engine=msgspec.structs.replace(READY, variant="own")))
    assert part.repair.isHidden()


def test_a_repair_asks_first_and_is_then_one_action_of_the_node(
    part: EnginePart, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    qtbot.mouseClick(part.repair, LEFT)
    assert backend.asked == []
    question = part.findChildren(Confirmation)[-1]
    qtbot.mouseClick(question.no, LEFT)
    assert backend.asked == []

    agree(part, qtbot)
    assert [asked.body for asked in backend.asked] == [EngineRequest(action="repair")]


def test_a_repair_that_is_refused_says_why(
    part: EnginePart, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    agree(part, qtbot)

    with qtbot.waitSignal(backend.problem):
        backend.last(PATH).call.failed.emit(Problem("The engine is being installed."))
