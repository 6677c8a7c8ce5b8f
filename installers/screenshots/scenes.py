"""Every screen and state, each one function. A new scene is a function with `@scene`.

A scene gets a `Stage`, shows what it needs there, and returns the window, dialog or menu of the
picture. The name of the function is the name of the picture: screen first, then state.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from PySide6.QtCore import QSignalBlocker
from PySide6.QtWidgets import QWidget
from screenshots import home, models
from screenshots.stage import Stage
from screenshots.talk import REPLY

from potluck.api.hub import HubAnswer
from potluck.api.schema import Invite
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Attachment, Draft, Hit, Settings
from potluck_app.http import Problem
from potluck_app.views.main_window import MainWindow

Scene: TypeAlias = Callable[[Stage], QWidget]
SCENES: dict[str, Scene] = {}


def scene(make: Scene) -> Scene:
    """Add a scene to the list."""
    SCENES[make.__name__.replace("_", "-")] = make
    return make


# --- the first start, and the chat


@scene
def first(stage: Stage) -> QWidget:
    stage.backend.say(home.alone())
    return stage.main(is_first=True)


@scene
def chat_starting(stage: Stage) -> QWidget:
    return stage.main()


@scene
def chat_empty(stage: Stage) -> QWidget:
    stage.backend.say(home.alone())
    return stage.main()


@scene
def chat(stage: Stage) -> QWidget:
    return stage.talking()


@scene
def chat_options(stage: Stage) -> QWidget:
    window = stage.talking()
    window.chat.toggle_options()
    stage.chat.set_settings(Settings(system="Answer briefly.", temperature=0.2, top_p=0.9))
    return window


@scene
def chat_edit(stage: Stage) -> QWidget:
    window = stage.talking()
    page = window.chat
    page.edit_last()
    files = (Attachment(name="chunks.py", text=REPLY), Attachment(name="notes.md", text="-"))
    page.composer.show_draft(Draft(text="Why does this fail?", attachments=files))
    page.sidebar.toast.offer("Deleted: Old recipes")
    return window


def _found(stage: Stage, window: MainWindow, hits: Sequence[Hit]) -> None:
    """Show these hits for the word "slice", without a search in the file of the chats."""
    with QSignalBlocker(window.chat.sidebar.search):
        window.chat.sidebar.search.setText("slice")
    stage.chat._searched = "slice"
    stage.chat._on_found("slice", hits)


@scene
def chat_search(stage: Stage) -> QWidget:
    window = stage.talking()
    newest, other = stage.known[0], stage.known[1]
    excerpt = "…Use a slice in a generator, it works for any sequence"
    found = [
        Hit(chat=other.id, title=other.title),
        Hit(chat=newest.id, title=newest.title, message="r2", excerpt=excerpt),
    ]
    _found(stage, window, found)
    stage.chat.messages.reset(stage.chat._shown.tree if stage.chat._shown else Tree())
    stage.chat.revealed.emit(1, "slice")
    return window


@scene
def chat_search_empty(stage: Stage) -> QWidget:
    window = stage.talking()
    _found(stage, window, [])
    return window


@scene
def chat_find(stage: Stage) -> QWidget:
    window = stage.talking()
    window.chat.find_bar.open_bar()
    return window


@scene
def chat_full(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.say(home.with_context(home.home(), 3200))
    return window


@scene
def chat_waiting(stage: Stage) -> QWidget:
    window = stage.main()
    stage.backend.say(home.home(streaming=True))
    stage.chat.send("Plan a week of dinners for four, nothing with nuts.")
    return window


@scene
def chat_notice(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.say(home.with_notice(home.home()))
    return window


@scene
def chat_restarting(stage: Stage) -> QWidget:
    window = stage.talking()
    stage.backend.lose()
    return window


@scene
def chat_shortcuts(stage: Stage) -> QWidget:
    return stage.talking().show_shortcuts()


@scene
def chat_models(stage: Stage) -> QWidget:
    window = stage.talking()
    window.library._on_models(models.MODELS_HERE)
    return window.chat.model.menu()


# --- the computers


def _cluster(stage: Stage) -> MainWindow:
    window = stage.main()
    window.go(window.cluster)
    return window


@scene
def cluster(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.home())
    return window


@scene
def cluster_streaming(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.home(streaming=True))
    return window


@scene
def cluster_alone(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.alone())
    return window


@scene
def cluster_nothing_found(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.alone())
    window.cluster.looking.show_search(has_ended=True)
    return window


@scene
def cluster_restarting(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.home())
    stage.backend.lose()
    return window


@scene
def cluster_add(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.alone())
    return window.cluster.open_add_dialog()


@scene
def cluster_add_token(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.alone())
    dialog = window.cluster.open_add_dialog()
    dialog._on_not_found(Problem("Nothing answers at 192.168.1.20. Is Potluck open there?"))
    dialog._on_invite(Invite(token="POT-" + "7KQ2M9XD" * 6, expires_s=600))
    return dialog


@scene
def cluster_doctor(stage: Stage) -> QWidget:
    window = _cluster(stage)
    stage.backend.say(home.alone())
    dialog = window.cluster.open_doctor()
    dialog.doctor._on_diagnosis(home.DIAGNOSIS)
    return dialog


# --- the models


def _models(stage: Stage) -> MainWindow:
    window = stage.main()
    stage.backend.say(home.home())
    window.go(window.models)
    window.library._on_models(models.MODELS_HERE)
    window.library._on_recommended(HubAnswer(models=models.RECOMMENDED))
    return window


@scene
def models_here(stage: Stage) -> QWidget:
    return _models(stage)


@scene
def models_none(stage: Stage) -> QWidget:
    window = _models(stage)
    window.library._on_models(())
    return window


@scene
def models_discover(stage: Stage) -> QWidget:
    window = _models(stage)
    window.models.open_tab(window.models.tab_hub)
    return window


@scene
def models_download(stage: Stage) -> QWidget:
    window = _models(stage)
    window.models.open_tab(window.models.tab_hub)
    stage.backend.say(msgspec.structs.replace(home.home(), downloads=models.DOWNLOADS))
    gated = models.RECOMMENDED[2]
    window.library._on_details(gated)
    terms = "The owner of the model asks its users to accept terms."
    window.library._on_refused(gated.name, None, Problem(terms, code="gated"))
    return window


@scene
def models_offline(stage: Stage) -> QWidget:
    window = _models(stage)
    window.models.open_tab(window.models.tab_hub)
    with QSignalBlocker(window.models.search):
        window.models.search.setText("qwen3")
    window.library.search("qwen3")
    answer = HubAnswer(offline=True, message=models.OFFLINE)
    window.library._on_found("qwen3", answer)
    return window


# --- the settings, and the window of a computer that helps


@scene
def settings(stage: Stage) -> QWidget:
    window = stage.main()
    stage.backend.say(home.home())
    window.go(window.settings)
    return window


@scene
def settings_licences(stage: Stage) -> QWidget:
    window = stage.main()
    window.go(window.settings)
    return window.settings.about.show_licences()


@scene
def worker(stage: Stage) -> QWidget:
    return stage.worker(home.lent())


@scene
def worker_asked(stage: Stage) -> QWidget:
    return stage.worker(home.lent(asked=True))


@scene
def worker_free(stage: Stage) -> QWidget:
    return stage.worker(msgspec.structs.replace(home.lent(asked=True), pairings=()))


@scene
def worker_paused(stage: Stage) -> QWidget:
    state = home.lent()
    node = msgspec.structs.replace(state.node, paused=True, lent_to=())
    return stage.worker(msgspec.structs.replace(state, node=node))
