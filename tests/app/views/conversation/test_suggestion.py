"""An empty chat with the guide alone suggests a model for everything else."""

from dataclasses import dataclass
from typing import TypeVar

import pytest
from fake_library import FIT, TOO_BIG, model
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.hub import Download, DownloadRequest, HubAnswer
from potluck.api.values.schema import ModelEntry
from potluck_app.streams import Load
from potluck_app.views.conversation.suggestion import Suggestion
from potluck_app.views.library.model_cards import CardList, DownloadCardView, HubCardView
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton
GUIDE = ModelEntry(name="guide", path="/guide", nbytes=7_000_000, source="potluck", parameters=1)
QWEN = ModelEntry(name="Qwen3 8B", path="/qwen", nbytes=1, parameters=1, fit=FIT, source="hub")
RUNNING = Download(
    id="d1", model="anna/tiny-GGUF", variant="Q4_K_M", state="running", done=1, total=2
)

W = TypeVar("W", bound=QWidget)


@dataclass
class Told:
    """What the node says of models."""

    backend: ScriptedBackend

    def here(self, *entries: ModelEntry) -> None:
        self.backend.last("/cluster/models").call.done.emit(entries)

    def recommended(self, answer: HubAnswer) -> None:
        self.backend.last("/cluster/hub/recommended").call.done.emit(answer)


@pytest.fixture
def told(backend: ScriptedBackend) -> Told:
    return Told(backend)


@pytest.fixture
def suggestion(window: MainWindow, backend: ScriptedBackend) -> Suggestion:
    window.go(window.chat)
    backend.say(home())
    return window.chat.suggestion


def only(cards: "CardList[object]", kind: type[W]) -> W:
    (card,) = cards.cards()
    assert isinstance(card, kind)
    return card


def test_the_best_model_is_downloaded_with_a_click_and_then_used(
    suggestion: Suggestion,
    backend: ScriptedBackend,
    told: Told,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str | None] = []
    load = Load(backend)
    monkeypatch.setattr(backend, "load_model", lambda path: loaded.append(path) or load)
    told.here(GUIDE)
    told.recommended(HubAnswer(models=(model(),)))
    card = only(suggestion.models, HubCardView)  # type: ignore[arg-type]
    assert suggestion.isVisible()
    assert FIT.text in card.fit.text()

    qtbot.mouseClick(card.action, LEFT)
    assert backend.last("/cluster/downloads").body == DownloadRequest(
        model="anna/tiny-GGUF", variant="Q4_K_M"
    )

    backend.say(home(downloads=(RUNNING,)))
    download = only(suggestion.downloads, DownloadCardView)  # type: ignore[arg-type]
    assert not suggestion.models.isVisible()
    qtbot.mouseClick(download.cancel, LEFT)
    question = suggestion.findChild(Confirmation)
    assert question is not None
    question.reject()

    done = replace(RUNNING, state="done", done=2, path="/tiny")
    backend.say(home(downloads=(done,)))
    assert download.use.isVisible()
    qtbot.mouseClick(download.use, LEFT)
    assert loaded == ["/tiny"]


@pytest.mark.parametrize(
    ("entries", "answer"),
    [
        ((GUIDE, QWEN), HubAnswer(models=(model(),))),
        ((GUIDE,), HubAnswer(models=(replace(model(), fit=TOO_BIG),))),
        ((GUIDE,), HubAnswer()),
    ],
    ids=["another model is here", "none fits", "none is known"],
)
def test_nothing_is_suggested_without_need_or_where_nothing_fits(
    suggestion: Suggestion, told: Told, entries: tuple[ModelEntry, ...], answer: HubAnswer
) -> None:
    told.here(*entries)
    told.recommended(answer)

    assert not suggestion.isVisible()
