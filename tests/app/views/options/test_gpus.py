"""The check boxes of this computer's GPUs, in the settings and in the window of a helper."""

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.gpus import Gpu, GpuRequest
from potluck.api.values.schema import ClusterState
from potluck_app import language
from potluck_app.http import Problem
from potluck_app.views.options.gpus import GpuBoxes

pytestmark = pytest.mark.qt

PATH = "/cluster/gpus"
GAMES = Gpu(id="nvidia:GPU-1", name="NVIDIA GeForce RTX 4070")
OLD = Gpu(id="nvidia:GPU-2", name="NVIDIA GeForce GTX 1660", used=False)


def at(*gpus: Gpu) -> ClusterState:
    state = home()
    return replace(state, node=replace(state.node, gpus=gpus))


@pytest.fixture
def boxes(qtbot: QtBot, backend: ScriptedBackend) -> GpuBoxes:
    boxes = GpuBoxes(backend)
    qtbot.addWidget(boxes)
    boxes.show_state(at(GAMES, OLD))
    boxes.resize(400, 80)
    return boxes


def test_each_gpu_has_a_box_that_says_whether_it_is_used(boxes: GpuBoxes) -> None:
    assert [box.text() for box in boxes.boxes.values()] == [
        "Use for models: NVIDIA GeForce RTX 4070", "Use for models: NVIDIA GeForce GTX 1660",
    ]  # fmt: skip
    assert [box.isChecked() for box in boxes.boxes.values()] == [True, False]


def test_a_click_turns_a_gpu_off_or_on(boxes: GpuBoxes, backend: ScriptedBackend) -> None:
    boxes.boxes[GAMES.id].click()
    assert backend.last(PATH).body == GpuRequest(id=GAMES.id, used=False)
    boxes.boxes[OLD.id].click()
    assert backend.last(PATH).body == GpuRequest(id=OLD.id, used=True)


def test_a_choice_that_the_node_refuses_is_undone_and_said(
    boxes: GpuBoxes, backend: ScriptedBackend
) -> None:
    boxes.boxes[GAMES.id].click()
    backend.last(PATH).call.failed.emit(Problem("This computer has no such GPU now."))
    assert boxes.boxes[GAMES.id].isChecked()


def test_where_there_is_no_gpu_nothing_is_shown(boxes: GpuBoxes) -> None:
    assert not boxes.isHidden()
    boxes.show_state(at())
    assert boxes.isHidden()
    boxes.show_state(at(OLD))
    assert list(boxes.boxes) == [OLD.id]
    boxes.show_state(None)
    assert boxes.isHidden()


def test_it_speaks_german(qtbot: QtBot, backend: ScriptedBackend, qapp: QApplication) -> None:
    translators = language.use(qapp, "de")
    boxes = GpuBoxes(backend)
    qtbot.addWidget(boxes)
    boxes.show_state(at(GAMES))
    boxes.resize(400, 80)
    for translator in translators:
        qapp.removeTranslator(translator)

    assert boxes.boxes[GAMES.id].text() == "Für Modelle verwenden: NVIDIA GeForce RTX 4070"
