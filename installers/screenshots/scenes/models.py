"""The Models page: what is here, what can be downloaded, and the questions."""

from msgspec.structs import replace
from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QWidget
from screenshots import home, models
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.values.hub import Deleted, HubAnswer
from potluck.api.values.weights import Verified, VerifiedModel, VerifiedStore, VerifyProgress
from potluck_app.http import Problem
from potluck_app.views.library.model_cards import HubCardView, ModelCardView, ask_to_cancel
from potluck_app.views.main_window import MainWindow


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
    """The models on this computer."""
    return _models(stage)


@scene
def models_none(stage: Stage) -> QWidget:
    """The Models page of a computer without a model."""
    window = _models(stage)
    window.library._on_models(())
    return window


@scene
def models_loading(stage: Stage) -> QWidget:
    """The Models page while a model is loaded."""
    window = _models(stage)
    stage.backend.say(home.home(streaming=True))
    return window


@scene
def models_discover(stage: Stage) -> QWidget:
    """Models that are recommended for the computers of this home."""
    return _models(stage, discover=True)


@scene
def models_sizes(stage: Stage) -> QWidget:
    """The sizes in which a model can be downloaded."""
    window = _models(stage, discover=True)
    window.library._on_details(models.RECOMMENDED[0])
    return window


@scene
def models_gated(stage: Stage) -> QWidget:
    """A model whose terms must be accepted, and the field for the token."""
    return _gated(stage)


def _gated(stage: Stage) -> MainWindow:
    window = _models(stage, discover=True)
    gated = replace(models.RECOMMENDED[2], gated=True)
    window.library._on_recommended(HubAnswer(models=(gated, *models.RECOMMENDED[:2])))
    window.library._on_refused(gated.name, None, Problem(models.TERMS, code="gated"))
    return window


@scene
def models_download(stage: Stage) -> QWidget:
    """Downloads: one that runs and one that is paused."""
    window = _models(stage, discover=True)
    stage.backend.say(replace(home.home(), downloads=models.DOWNLOADS))
    return window


@scene
def models_searching(stage: Stage) -> QWidget:
    """The Hugging Face Hub is searched."""
    window = _models(stage, discover=True)
    _search(window)
    return window


@scene
def models_nothing_found(stage: Stage) -> QWidget:
    """A search of the Hub that finds nothing."""
    window = _models(stage, discover=True)
    _search(window)
    window.library._on_found("qwen3", HubAnswer(message=models.NOTHING))
    return window


@scene
def models_offline(stage: Stage) -> QWidget:
    """The Hub cannot be reached."""
    window = _models(stage, discover=True)
    _search(window)
    window.library._on_found("qwen3", HubAnswer(offline=True, message=models.OFFLINE))
    return window


@scene
def models_add(stage: Stage) -> QWidget:
    """The ways to add models that are on this computer."""
    return _models(stage).models.menu()


@scene
def models_menu(stage: Stage) -> QWidget:
    """What can be done with a model on this computer."""
    card = _models(stage).models.here.cards()[2]
    assert isinstance(card, ModelCardView)
    return card.menu()


@scene
def models_hub_menu(stage: Stage) -> QWidget:
    """What can be done with a model of the Hub."""
    card = _models(stage, discover=True).models.hub.cards()[0]
    assert isinstance(card, HubCardView)
    return card.menu()


@scene
def models_delete(stage: Stage) -> QWidget:
    """The question before a model is deleted."""
    window = _models(stage)
    rows = window.library.models
    assert rows is not None
    return window.models.ask_to_delete(rows[2])


@scene
def models_cancel(stage: Stage) -> QWidget:
    """The question before a download is cancelled."""
    window = _models(stage)
    stage.backend.say(replace(home.home(), downloads=models.DOWNLOADS))
    return ask_to_cancel(window.models, window.library, window.library.downloads[0])


@scene
def models_queue(stage: Stage) -> QWidget:
    """Downloads in every state: one that runs, the queue, paused, without internet, failed, and done."""
    window = _models(stage)
    stage.backend.say(replace(home.home(), downloads=models.QUEUE))
    return window


@scene
def models_found(stage: Stage) -> QWidget:
    """What a search of the Hub has found."""
    window = _models(stage, discover=True)
    _search(window)
    window.library._on_found("qwen3", HubAnswer(models=models.FOUND))
    return window


@scene
def models_measuring(stage: Stage) -> QWidget:
    """The recommended models while the computers are measured."""
    window = _models(stage, discover=True)
    plain = tuple(replace(each, fit=None, variants=()) for each in models.RECOMMENDED)
    window.library._on_recommended(HubAnswer(models=plain, measuring=True))
    return window


@scene
def models_checked(stage: Stage) -> QWidget:
    """Models whose weights were checked: one is damaged, one is being checked."""
    window = _models(stage)
    rows = window.library.models
    assert rows is not None
    big, _, small, *_ = rows
    found = VerifiedModel(name=big.name, path=big.path, nbytes=1, damaged=("a", "b"))
    damaged = Verified(models=(found,), store=VerifiedStore())
    window.library._on_check(big.path, VerifyProgress(state="ready", result=damaged))
    window.library._on_check(small.path, VerifyProgress(state="checking", fraction=0.41))
    return window


@scene
def models_broken(stage: Stage) -> QWidget:
    """A model on this computer that cannot be used, and why."""
    window = _models(stage)
    window.library._on_models((models.BROKEN, *models.MODELS_HERE))
    stage.scroll(window.models, 1.0)
    return window


@scene
def models_deleted(stage: Stage) -> QWidget:
    """A model was deleted: how much room that made."""
    window = _models(stage)
    window.library._on_models(models.MODELS_HERE[:2])
    window.library._on_deleted(Deleted(name=models.QWEN3.format("8B"), nbytes=5_030_000_000))
    return window


@scene
def models_token_wrong(stage: Stage) -> QWidget:
    """A token that the Hub does not know."""
    window = _gated(stage)
    window.library._on_token_refused(Problem(models.UNKNOWN_ACCOUNT, code="gated"))
    return window


@scene
def models_no_room(stage: Stage) -> QWidget:
    """A model for which the disk has too little room."""
    window = _models(stage, discover=True)
    window.library._fail(models.RECOMMENDED[0].name, Problem(models.NO_ROOM, code="disk_full"))
    return window


@scene
def models_starting(stage: Stage) -> QWidget:
    """The Models page while Potluck starts in the background."""
    window = stage.main()
    window.go(window.models)
    return window


@scene
def models_folder(stage: Stage) -> QWidget:
    """Which folder has models, on a desktop without a dialog of its own for that."""
    _models(stage).models.choose_folder()
    return stage.file_dialog()
