"""The Models page: what is here, what can be downloaded, and the questions."""

from msgspec.structs import replace
from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QWidget
from screenshots import home, models
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.hub import HubAnswer
from potluck_app.http import Problem
from potluck_app.views.main_window import MainWindow
from potluck_app.views.model_cards import HubCardView, ModelCardView, ask_to_cancel


def _models(stage: Stage, *, discover: bool = False) -> MainWindow:
    window = stage.main()
    stage.backend.say(home.home())
    window.go(window.models)
    window.library._on_models(models.MODELS_HERE)
    window.library._on_recommended(HubAnswer(models=models.RECOMMENDED))
    if discover:
        window.models.open_tab(window.models.tab_hub)
    return window


def _search(window: MainWindow) -> None:
    with QSignalBlocker(window.models.search):
        window.models.search.setText("qwen3")
    window.library.search("qwen3")


@scene
def models_here(stage: Stage) -> QWidget:
    return _models(stage)


@scene
def models_none(stage: Stage) -> QWidget:
    window = _models(stage)
    window.library._on_models(())
    return window


@scene
def models_loading(stage: Stage) -> QWidget:
    window = _models(stage)
    stage.backend.say(home.home(streaming=True))
    return window


@scene
def models_discover(stage: Stage) -> QWidget:
    return _models(stage, discover=True)


@scene
def models_sizes(stage: Stage) -> QWidget:
    window = _models(stage, discover=True)
    window.library._on_details(models.RECOMMENDED[0])
    return window


@scene
def models_gated(stage: Stage) -> QWidget:
    window = _models(stage, discover=True)
    gated = replace(models.RECOMMENDED[2], gated=True)
    window.library._on_recommended(HubAnswer(models=(gated, *models.RECOMMENDED[:2])))
    terms = "The owner of the model asks its users to accept terms."
    window.library._on_refused(gated.name, None, Problem(terms, code="gated"))
    return window


@scene
def models_download(stage: Stage) -> QWidget:
    window = _models(stage, discover=True)
    stage.backend.say(replace(home.home(), downloads=models.DOWNLOADS))
    return window


@scene
def models_searching(stage: Stage) -> QWidget:
    window = _models(stage, discover=True)
    _search(window)
    return window


@scene
def models_nothing_found(stage: Stage) -> QWidget:
    window = _models(stage, discover=True)
    _search(window)
    window.library._on_found("qwen3", HubAnswer(message=models.NOTHING))
    return window


@scene
def models_offline(stage: Stage) -> QWidget:
    window = _models(stage, discover=True)
    _search(window)
    window.library._on_found("qwen3", HubAnswer(offline=True, message=models.OFFLINE))
    return window


@scene
def models_add(stage: Stage) -> QWidget:
    return _models(stage).models.menu()


@scene
def models_menu(stage: Stage) -> QWidget:
    card = _models(stage).models.here.cards()[2]
    assert isinstance(card, ModelCardView)
    return card.menu()


@scene
def models_hub_menu(stage: Stage) -> QWidget:
    card = _models(stage, discover=True).models.hub.cards()[0]
    assert isinstance(card, HubCardView)
    return card.menu()


@scene
def models_delete(stage: Stage) -> QWidget:
    window = _models(stage)
    rows = window.library.models
    assert rows is not None
    return window.models.ask_to_delete(rows[2])


@scene
def models_cancel(stage: Stage) -> QWidget:
    window = _models(stage)
    stage.backend.say(replace(home.home(), downloads=models.DOWNLOADS))
    return ask_to_cancel(window.models, window.library, window.library.downloads[0])
