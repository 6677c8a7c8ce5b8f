"""The Models page: what is here, what can be had, what is being downloaded."""

from typing import TypeVar

import pytest
from fake_library import FIT, TOO_BIG, model
from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QLabel, QLineEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck.api.values.hub import Download, DownloadChange, DownloadRequest, HubAnswer, HubToken
from potluck.api.values.schema import ModelEntry
from potluck.api.values.weights import Verified, VerifiedModel, VerifiedStore, VerifyProgress
from potluck_app.http import Problem
from potluck_app.streams import Load
from potluck_app.views.library.model_cards import DownloadCardView, HubCardView, ModelCardView
from potluck_app.views.library.models import ModelsView
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton
GUIDE = ModelEntry(name="guide", path="/guide", nbytes=7_000_000, source="potluck", parameters=1)
QWEN = ModelEntry(
    name="Qwen3 8B",
    path="/qwen",
    nbytes=16_400_000_000,
    parameters=8_200_000_000,
    can_be_deleted=True,
    source="hub",
    fit=FIT,
)
BIG = ModelEntry(name="Big", path="/big", nbytes=1, parameters=1, fit=TOO_BIG)
RUNNING = Download(
    id="d1", model="anna/tiny-GGUF", variant="Q4_K_M", state="running", done=1, total=2
)

W = TypeVar("W", bound=QWidget)


def card(page: ModelsView, kind: type[W], place: int = 0) -> W:
    cards = {ModelCardView: page.here, DownloadCardView: page.downloads, HubCardView: page.hub}
    found = cards[kind].cards()[place]  # type: ignore[index]
    assert isinstance(found, kind)
    return found


def texts(widget: QWidget) -> str:
    shown = (each for each in widget.findChildren(QLabel) if each.isVisibleTo(widget))
    return " | ".join(each.text() for each in shown)


@pytest.fixture
def page(window: MainWindow, backend: ScriptedBackend) -> ModelsView:
    window.go(window.models)
    backend.say(home())
    return window.models


def list_here(backend: ScriptedBackend, *entries: ModelEntry) -> None:
    backend.last("/cluster/models").call.done.emit(entries)


def recommend(backend: ScriptedBackend, answer: HubAnswer | None = None) -> None:
    answer = answer or HubAnswer(models=(model(),))
    backend.last("/cluster/hub/recommended").call.done.emit(answer)


def test_a_model_here_says_how_it_fits_and_is_used(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    load = Load(backend)
    monkeypatch.setattr(backend, "load_model", lambda path: asked.append(path) or load)
    list_here(backend, GUIDE, QWEN, BIG)
    qwen, big = card(page, ModelCardView, 1), card(page, ModelCardView, 2)
    assert "3 models on this computer" in page.subtitle.text()
    assert "16.4 GB here" in texts(qwen)
    assert FIT.text in texts(qwen)
    assert "Would fit with 8 GB more memory" in texts(big)
    assert (qwen.use.isEnabled(), big.use.isEnabled()) == (True, False)
    assert qwen.use.accessibleName() == "Use Qwen3 8B"

    qtbot.mouseClick(qwen.use, LEFT)

    assert asked == ["/qwen"]
    window = page.window()
    assert isinstance(window, MainWindow)
    assert window.pages.currentWidget() is window.chat
    load.failed.emit(Problem("This folder holds no model."))
    assert window.banner.text.text() == "This folder holds no model."


def test_a_computer_without_a_model_of_its_own_is_shown_what_it_can_get(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    list_here(backend, GUIDE)
    recommend(backend)
    assert page.tab_hub.isChecked()
    assert page.hub.isVisible()

    qtbot.mouseClick(page.tab_here, LEFT)
    list_here(backend, GUIDE)

    assert page.here.isVisible()  # the person has chosen
    assert not page.hub.isVisible()


def test_a_recommended_model_is_downloaded_paused_resumed_cancelled_and_used(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    list_here(backend, GUIDE)
    recommend(backend)
    offered = card(page, HubCardView)
    assert FIT.text in texts(offered)
    assert "licence apache-2.0" in texts(offered)
    assert offered.action.text() == "Download"
    qtbot.mouseClick(offered.action, LEFT)
    asked = backend.last("/cluster/downloads")
    assert asked.body == DownloadRequest(model="anna/tiny-GGUF", variant="Q4_K_M")
    assert not offered.action.isEnabled()
    asked.call.done.emit(RUNNING)

    backend.say(home(downloads=(RUNNING,)))
    shown = card(page, DownloadCardView)
    assert shown.meter.fraction == 0.5
    assert offered.action.text() == "Downloading…"
    qtbot.mouseClick(shown.pause, LEFT)
    assert backend.last("/cluster/downloads/d1").body == DownloadChange(action="pause")

    paused = Download(
        id="d1", model="anna/tiny-GGUF", variant="Q4_K_M", state="paused", done=1, total=2
    )
    backend.say(home(downloads=(paused,)))
    assert card(page, DownloadCardView) is shown
    assert not shown.pause.isVisible()
    qtbot.mouseClick(shown.resume, LEFT)
    assert backend.last("/cluster/downloads/d1").body == DownloadChange(action="resume")
    qtbot.mouseClick(shown.cancel, LEFT)
    asked = page.findChildren(Confirmation)[-1]
    assert backend.last("/cluster/downloads/d1").body != DownloadChange(action="cancel")
    qtbot.mouseClick(asked.yes, LEFT)
    assert backend.last("/cluster/downloads/d1").body == DownloadChange(action="cancel")

    done = Download(
        id="d1",
        model="anna/tiny-GGUF",
        variant="Q4_K_M",
        state="done",
        done=2,
        total=2,
        path="/new",
    )
    backend.say(home(downloads=(done,)))
    assert (shown.use.isVisible(), shown.cancel.text()) == (True, "Close")
    qtbot.mouseClick(shown.use, LEFT)
    backend.say(home())
    assert page.downloads.cards() == []


def test_other_sizes_of_a_model_are_shown_and_one_is_downloaded(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    list_here(backend, GUIDE)
    recommend(backend)
    offered = card(page, HubCardView)
    offered.menu().actions()[0].trigger()
    backend.last("/cluster/hub/models/anna/tiny-GGUF").call.done.emit(model())
    choose = offered.findChild(QPushButton, "variant-Q8_0")
    assert choose is not None
    qtbot.waitUntil(lambda: "Q8_0 · 8 GB" in texts(offered))
    assert "Would fit with 8 GB more" in texts(offered)

    qtbot.mouseClick(choose, LEFT)

    assert backend.last("/cluster/downloads").body.variant == "Q8_0"
    offered.menu().actions()[0].trigger()
    assert "Q8_0 · 8 GB" not in texts(offered)


def test_the_page_of_a_model_opens_in_the_browser(
    page: ModelsView, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    recommend(backend)

    card(page, HubCardView).menu().actions()[1].trigger()

    assert opened == ["https://huggingface.co/anna/tiny-GGUF"]


def test_a_model_with_terms_asks_for_a_token(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_here(backend, GUIDE)
    recommend(backend, HubAnswer(models=(model(gated=True),)))
    offered = card(page, HubCardView)
    assert "asks to accept terms" in texts(offered)
    assert not offered.lock.isVisible()
    offered.action.click()
    problem = Problem("Accept the terms of the model.", code="gated")
    backend.last("/cluster/downloads").call.failed.emit(problem)
    assert offered.lock.isVisible()
    assert offered.lock.text.echoMode() == QLineEdit.EchoMode.Password

    assert "Accept the terms of the model." in texts(offered)
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    page_button = offered.findChild(QPushButton, "hub-token-page")
    assert page_button is not None
    page_button.click()
    assert opened == ["https://huggingface.co/anna/tiny-GGUF"]

    qtbot.keyClicks(offered.lock.text, "hf_mine")
    qtbot.keyClick(offered.lock.text, Qt.Key.Key_Return)

    assert backend.last("/cluster/hub/token").body == HubToken(token="hf_mine")
    assert offered.lock.text.text() == ""
    backend.last("/cluster/hub/token").call.failed.emit(Problem("This token is not known."))
    assert "This token is not known." in texts(offered)


def test_the_hub_is_searched_and_a_missing_network_is_a_calm_line(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    list_here(backend, GUIDE)
    recommend(backend)
    page._searching.setInterval(0)
    qtbot.keyClicks(page.search, "qwen")
    path = "/cluster/hub/search?query=qwen"
    qtbot.waitUntil(lambda: f"GET {path}" in backend.paths())
    assert page.said.text() == "Searching…"

    found = model("Qwen/Qwen3-4B", variants=(), best=None, fit=None)
    backend.last(path).call.done.emit(HubAnswer(models=(found,)))
    assert page.group.text() == "Found on Hugging Face"
    assert card(page, HubCardView).name.whole_text() == "Qwen3-4B"
    card(page, HubCardView).action.click()  # its forms are not known yet
    assert backend.asked[-1].path == "/cluster/hub/models/Qwen/Qwen3-4B"

    qtbot.keyClick(page.search, Qt.Key.Key_Return)
    offline = HubAnswer(offline=True, message="The Hugging Face Hub cannot be reached.")
    backend.last(path).call.done.emit(offline)
    assert page.said.text().startswith("The Hugging Face Hub cannot be reached.")
    assert page.group.text() == "Recommended for your computers"
    assert not page.said.property("tone")


def test_the_speeds_are_said_to_be_measured(page: ModelsView, backend: ScriptedBackend) -> None:
    list_here(backend, GUIDE)
    recommend(backend, HubAnswer(models=(model(),), measuring=True))

    assert page.said.text() == "Measuring how fast your computers are…"


def test_a_model_is_deleted_after_a_question(
    page: ModelsView, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    list_here(backend, GUIDE, QWEN)
    shown = card(page, ModelCardView, 1)
    assert [action.text() for action in shown.menu().actions()] == [
        "Check its weights",
        "Delete from the disk…",
    ]
    assert len(card(page, ModelCardView).menu().actions()) == 1  # the guide stays

    row = next(row for row in page._library.models or () if row.path == "/qwen")
    question = page.ask_to_delete(row)
    question.reject()
    assert "POST /cluster/models/delete" not in backend.paths()
    qtbot.mouseClick(page.ask_to_delete(row).yes, LEFT)

    assert backend.last("/cluster/models/delete").body.model == "/qwen"


@pytest.mark.parametrize(
    ("number", "mode"),
    [(0, QFileDialog.FileMode.Directory), (1, QFileDialog.FileMode.ExistingFile)],
)
def test_a_folder_is_searched_and_a_gguf_file_is_used(
    page: ModelsView,
    backend: ScriptedBackend,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    mode: QFileDialog.FileMode,
) -> None:
    modes: list[QFileDialog.FileMode] = []
    used: list[str | None] = []

    def choose(dialog: QFileDialog) -> None:
        modes.append(dialog.fileMode())
        dialog.fileSelected.emit("/models/x")

    monkeypatch.setattr(QFileDialog, "open", choose)
    load = Load(backend)
    monkeypatch.setattr(backend, "load_model", lambda path: used.append(path) or load)
    page.menu().actions()[number].trigger()

    assert modes == [mode]
    assert used == ["/models/x"] * number
    assert ("POST /cluster/models/folders" in backend.paths()) is (number == 0)


def test_the_model_on_its_way_shows_its_progress(
    page: ModelsView, backend: ScriptedBackend
) -> None:
    backend.say(home(model=running_model(state="loading", progress=0.5, plan=None)))

    assert page._line.isVisible()
    assert page._line.text() == "Qwen3 8B · Loading the model · 50 %"
    backend.say(home(model=running_model()))
    assert not page._line.isVisible()


def test_damaged_weights_are_said_as_an_error(window: MainWindow) -> None:
    page = window.models
    window.library._on_models((QWEN,))

    found = VerifiedModel(name="Qwen3 8B", path="/qwen", nbytes=1, damaged=("a",))
    result = Verified(models=(found,), store=VerifiedStore())
    window.library._on_check("/qwen", VerifyProgress(state="ready", result=result))

    note = card(page, ModelCardView).note
    assert note.text() == "1 part is damaged. Delete the model and download it again."
    assert note.property("kind") == "error"


def test_facts_stand_below_a_state_that_leaves_them_no_room(window: MainWindow) -> None:
    page = window.models
    window.resize(480, 560)
    window.go(page)
    window.library._on_models((QWEN,))
    shown = card(page, ModelCardView)

    shown.pill.show_state("A state in rather many words", "ok")
    QCoreApplication.processEvents()
    window.resize(481, 560)
    QCoreApplication.processEvents()

    assert shown.facts.y() >= shown.pill.geometry().bottom()
    assert shown.facts.width() > 200


def test_without_a_node_the_focus_stays_on_the_page(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.lose()

    window.go(window.models)

    assert window.focusWidget() is window.models
    assert not window.models.add.isEnabled()
