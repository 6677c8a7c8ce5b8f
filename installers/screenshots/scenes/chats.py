"""The page of a chat: its list, its search, its options, and editing."""

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QWidget
from screenshots import models, talk
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Hit, Settings
from potluck_app.views.main_window import MainWindow


@scene
def chat(stage: Stage) -> QWidget:
    """A chat: the list of chats, the messages, and the field for the next one."""
    return stage.talking()


@scene
def chat_options(stage: Stage) -> QWidget:
    """The options of a chat: instructions, temperature, length, context, and presets."""
    window = stage.talking()
    window.chat.toggle_options()
    stage.chat.set_settings(Settings(system="Answer briefly.", temperature=0.2, top_p=0.9))
    return window


@scene
def chat_options_advanced(stage: Stage) -> QWidget:
    """All options of a chat, for people who know them."""
    window = stage.talking()
    window.chat.toggle_options()
    stage.chat.set_settings(Settings(temperature=0.2))
    window.chat.drawer.show_advanced(True)
    return window


@scene
def chat_presets(stage: Stage) -> QWidget:
    """The menu of presets, with one that was saved."""
    window = stage.talking()
    stage.chat.presets.save("Short answers", stage.chat.settings)
    return window.chat.drawer.presets_menu()


@scene
def chat_list(stage: Stage) -> QWidget:
    """The chat with its list hidden, or in a narrow window with the list over it."""
    window = stage.talking()
    window.chat.toggle_list()
    return window


@scene
def chat_list_menu(stage: Stage) -> QWidget:
    """What can be done with a chat in the list: pin, rename, export, delete."""
    sidebar = stage.talking().chat.sidebar
    return sidebar.menu_for(stage.chat.list.index_of(stage.known[1].id))


@scene
def chat_list_rename(stage: Stage) -> QWidget:
    """A chat that is being renamed in the list, below one that is pinned."""
    window = stage.talking()
    stage.chat.pin(stage.known[3].id, True)
    if not window.chat.sidebar.isVisible():
        window.chat.toggle_list()
    stage.settle()
    window.chat.sidebar._edit(stage.known[1].id)
    return window


@scene
def chat_edit(stage: Stage) -> QWidget:
    """A message of one's own while it is edited."""
    window = stage.talking()
    window.chat.edit_last()
    return window


@scene
def chat_edit_reply(stage: Stage) -> QWidget:
    """An answer while it is edited."""
    window = stage.talking()
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    reply.open_editor()
    return window


def _found(stage: Stage, window: MainWindow, hits: Sequence[Hit]) -> None:
    """Show these hits for the word "list", without a search in the file of the chats."""
    if not window.chat.sidebar.isVisible():
        window.chat.toggle_list()
    with QSignalBlocker(window.chat.sidebar.search):
        window.chat.sidebar.search.setText("list")
    stage.chat._searched = "list"
    stage.chat._on_found("list", hits)


@scene
def chat_search(stage: Stage) -> QWidget:
    """The search in all chats: what was found, and the place in the chat."""
    window = stage.talking()
    newest, packing = stage.known[0], stage.known[-1]
    excerpt = "…gives a list of lists, for iterators use itertools"
    found = [
        Hit(chat=newest.id, title=newest.title),
        Hit(chat=packing.id, title=packing.title),
        Hit(chat=newest.id, title=newest.title, message="r2", excerpt=excerpt),
    ]
    _found(stage, window, found)
    stage.chat.messages.reset(stage.chat._shown.tree if stage.chat._shown else Tree())
    stage.chat.revealed.emit(1, "list")
    return window


@scene
def chat_search_empty(stage: Stage) -> QWidget:
    """A search that finds nothing."""
    window = stage.talking()
    _found(stage, window, [])
    return window


@scene
def chat_find(stage: Stage) -> QWidget:
    """The search in the chat that is shown."""
    window = stage.talking()
    window.chat.find_bar.open_bar()
    window.chat.find_bar.text.setText("list")
    return window


@scene
def chat_shortcuts(stage: Stage) -> QWidget:
    """The page of the keyboard shortcuts."""
    return stage.talking().show_shortcuts()


@scene
def chat_models(stage: Stage) -> QWidget:
    """The menu of the models at the top of a chat."""
    window = stage.talking()
    window.library._on_models(models.MODELS_HERE)
    return window.chat.model.menu()


@scene
def chat_list_long(stage: Stage) -> QWidget:
    """A list of many chats, with long titles."""
    stage.known += talk.many()
    window = stage.talking()
    if not window.chat.sidebar.isVisible():
        window.chat.toggle_list()
    return window


@scene
def chat_deleted(stage: Stage) -> QWidget:
    """A chat was deleted: for some seconds, it can be had back."""
    window = stage.talking()
    if not window.chat.sidebar.isVisible():
        window.chat.toggle_list()
    stage.chat.delete(stage.known[2].id)
    return window


@scene
def chat_export(stage: Stage) -> QWidget:
    """Where an exported chat goes, on a desktop without a dialog of its own for that."""
    window = stage.talking()
    window.chat.sidebar._export(stage.known[0].id, "md", "Markdown (*.md)")
    return stage.file_dialog()


@scene
def chat_import(stage: Stage) -> QWidget:
    """Which chat is imported, on a desktop without a dialog of its own for that."""
    window = stage.talking()
    window.chat.sidebar.choose_import()
    return stage.file_dialog()


@scene
def chat_find_nothing(stage: Stage) -> QWidget:
    """A search in the chat that finds nothing."""
    window = stage.talking()
    window.chat.find_bar.open_bar()
    window.chat.find_bar.text.setText("tortoise")
    return window


@scene
def chat_options_wrong(stage: Stage) -> QWidget:
    """An option that is no number."""
    window = stage.talking()
    window.chat.toggle_options()
    window.chat.drawer.fields["temperature"].setText("warm")
    window.chat.drawer._change()
    return window


@scene
def chat_options_load(stage: Stage) -> QWidget:
    """A context that is longer than the one the model was loaded with."""
    window = stage.talking()
    window.chat.toggle_options()
    stage.chat.set_settings(Settings(context=65536))
    return window


@scene
def chat_focus(stage: Stage) -> QWidget:
    """The chat with the keyboard: a ring shows what Enter would press."""
    window = stage.talking()
    reply = window.chat.transcript.last_reply()
    assert reply is not None
    reply.regenerate.setFocus(Qt.FocusReason.TabFocusReason)
    return window


@scene
def chat_models_unknown(stage: Stage) -> QWidget:
    """The menu of the models before they are known."""
    return stage.talking().chat.model.menu()
