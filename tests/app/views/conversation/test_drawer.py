"""The drawer with the options of a chat, and its presets."""

import pytest
from chat_page import ask
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.chats.values import Settings
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt

CTRL = Qt.KeyboardModifier.ControlModifier


def test_the_options_of_a_chat_are_set_in_the_drawer(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    drawer = window.chat.drawer
    qtbot.keyClick(window, Qt.Key.Key_I, CTRL)
    assert drawer.isVisible()
    qtbot.mouseClick(drawer.advanced, Qt.MouseButton.LeftButton)
    qtbot.keyClicks(drawer.system, "Be brief.")
    qtbot.keyClicks(drawer.fields["temperature"], "0,3")
    qtbot.keyClicks(drawer.fields["top_k"], "40")
    qtbot.keyClicks(drawer.fields["seed"], "7")

    ask(window, backend, "How?")

    assert backend.settings == [Settings(system="Be brief.", temperature=0.3, top_k=40, seed=7)]
    qtbot.keyClick(window, Qt.Key.Key_N, CTRL)
    assert drawer.fields["temperature"].text() == drawer.system.toPlainText() == ""


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("temperature", "hot", "Temperature is a number from 0 to 100."),
        ("top_p", "1.5", "Top-p is a number from 0.01 to 1."),
        ("max_tokens", "0", "Maximum tokens is a whole number, 1 or more."),
        ("min_p", "nan", "Min-p is a number from 0 to 1."),
    ],
)
def test_a_number_that_is_none_is_told(
    window: MainWindow, chat: Chat, qtbot: QtBot, name: str, text: str, sentence: str
) -> None:
    window.chat.toggle_options()

    qtbot.keyClicks(window.chat.drawer.fields[name], text)

    assert window.chat.drawer.error.text() == sentence
    assert getattr(chat.settings, name) != text


def test_a_preset_is_saved_chosen_and_deleted(window: MainWindow, chat: Chat, qtbot: QtBot) -> None:
    window.chat.toggle_options()
    drawer = window.chat.drawer
    qtbot.keyClicks(drawer.system, "Be brief.")
    qtbot.keyClicks(drawer.name, "Brief")
    qtbot.keyClick(drawer.name, Qt.Key.Key_Return)
    assert drawer.presets.text() == "Brief"

    menu = drawer.presets_menu()
    exact = next(a for a in menu.actions() if a.text() == "Exact")
    exact.trigger()
    assert chat.settings == Settings(system="Be brief.", temperature=0.2, top_p=0.9)
    brief = next(a for a in drawer.presets_menu().actions() if a.text() == "Brief")
    brief.trigger()
    assert chat.settings == Settings(system="Be brief.")
    next(a for a in drawer.presets_menu().actions() if a.text() == "Delete “Brief”").trigger()
    assert drawer.presets.text() == "Custom"


def test_a_longer_context_is_loaded_from_the_drawer(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model(context=2048)))
    window.chat.toggle_options()
    qtbot.keyClicks(window.chat.drawer.fields["context"], "1024")
    assert not window.chat.drawer.load.isVisible()
    assert window.chat.top.context_text.text() == "Context 0 / 1k"

    window.chat.drawer.fields["context"].clear()
    qtbot.keyClicks(window.chat.drawer.fields["context"], "4096")

    assert window.chat.drawer.load.isVisible()


def test_the_advanced_options_are_folded_away_until_they_are_wanted(
    window: MainWindow, qtbot: QtBot
) -> None:
    window.chat.toggle_options()
    drawer = window.chat.drawer
    seen = {name for name, line in drawer.fields.items() if line.isVisible()}
    assert seen == {"temperature", "max_tokens", "context"}

    qtbot.mouseClick(drawer.advanced, Qt.MouseButton.LeftButton)

    assert all(line.isVisible() for line in drawer.fields.values())
    assert drawer.advanced.text() == "Hide advanced options"
    assert window._preferences.current.advanced  # and so it is at the next start


def test_an_advanced_option_that_a_chat_has_set_is_always_shown(
    window: MainWindow, chat: Chat
) -> None:
    window.chat.toggle_options()

    chat.set_settings(Settings(seed=7))

    assert window.chat.drawer.fields["seed"].isVisible()
    assert not window.chat.drawer.fields["top_p"].isVisible()


def test_the_field_that_is_wrong_is_marked_until_it_is_right(window: MainWindow) -> None:
    drawer = window.chat.drawer
    window.chat.toggle_options()
    field = drawer.fields["temperature"]

    field.setText("warm")
    field.textEdited.emit("warm")
    assert drawer.error.isVisible()
    assert field.property("wrong") == "true"

    field.setText("0.7")
    field.textEdited.emit("0.7")
    assert not drawer.error.isVisible()
    assert not field.property("wrong")
