"""The rail, the shortcuts, the one calm line; models and settings."""

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ME, ScriptedBackend, home, running_model

from potluck.api.values.schema import ComputerChange, Listener, Notice, RoleRequest
from potluck.api.values.update import Update
from potluck_app.http import Problem
from potluck_app.preferences import PreferencesFile
from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.home.computer_actions import Question
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt

CONTROL = Qt.KeyboardModifier.ControlModifier
LEFT = Qt.MouseButton.LeftButton


def button(window: QWidget, name: str) -> QPushButton:
    found = window.findChild(QPushButton, name)
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (Qt.Key.Key_1, "chat"),
        (Qt.Key.Key_2, "cluster"),
        (Qt.Key.Key_3, "models"),
        (Qt.Key.Key_Comma, "settings"),
    ],
)
def test_every_page_has_its_keys_and_its_place_in_the_rail(
    window: MainWindow, qtbot: QtBot, key: Qt.Key, name: str
) -> None:
    page = getattr(window, name)
    other = window.models if page is window.chat else window.chat
    window.go(other)

    qtbot.keyClick(window, key, CONTROL)
    assert window.pages.currentWidget() is page
    assert window.rail_buttons[name].isChecked()
    window.go(other)
    qtbot.mouseClick(window.rail_buttons[name], LEFT)

    assert window.pages.currentWidget() is page


def test_a_lost_node_is_one_calm_line_that_goes_by_itself(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home())
    assert not window.banner.isVisible()

    backend.lose()
    assert window.banner.isVisible()
    assert "starts again" in window.banner.text.text()
    backend.say(home())

    assert not window.banner.isVisible()


def test_nothing_of_a_dead_node_is_shown_or_can_be_clicked(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(model=running_model()))

    backend.lose()

    assert window.chat.pill.text() == "Starting"
    assert window.chat.model.text().startswith("Qwen3 8B")
    assert window.cluster.model.isHidden()
    assert not window.cluster._computers
    assert not window.cluster.add.isEnabled()
    models = window.models
    clicked = (models.add, models.tab_hub, models.here, models.downloads, models.search)
    assert not any(part.isEnabled() for part in clicked)
    backend.say(home())
    assert window.chat.pill.text() == "Ready"
    assert all(part.isEnabled() for part in clicked)


def test_the_most_severe_line_is_the_one_that_shows(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(notices=(Notice(id=1, level="info", text="Mac is back."),)))
    assert window.banner.text.text() == "Mac is back."
    backend.report(Problem("The disk is full."))
    assert window.banner.text.text() == "The disk is full."

    backend.lose()

    assert "starts again" in window.banner.text.text()


def test_a_notice_that_was_dismissed_does_not_come_back(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    notices = tuple(Notice(id=n, level="warning", text=f"Notice {n}") for n in (1, 2))
    backend.say(home(notices=notices))
    assert window.banner.text.text() == "Notice 2"

    qtbot.mouseClick(window.banner._close, LEFT)
    assert window.banner.text.text() == "Notice 1"
    qtbot.mouseClick(window.banner._close, LEFT)
    backend.say(home(notices=notices))
    assert not window.banner.isVisible()
    backend.say(home(notices=(*notices, Notice(id=3, level="error", text="Notice 3"))))

    assert window.banner.text.text() == "Notice 3"
    backend.say(home(notices=(Notice(id=1, level="info", text="Of another node."),)))
    assert window.banner.text.text() == "Of another node."


def test_a_newer_version_is_one_line_until_it_was_read_of(
    window: MainWindow, backend: ScriptedBackend, preferences: PreferencesFile
) -> None:
    offered = Update(phase="offered", message="There is one.", version="9.0.0")
    backend.say(home(update=offered))
    assert window.banner.text.text().startswith("Potluck 9.0.0 is there.")

    window.go(window.settings)  # its card says more

    assert window.banner.isHidden()
    assert preferences.current.read_update == "9.0.0"
    backend.say(home(update=replace(offered, version="9.1.0")))
    window.go(window.chat)
    backend.say(home(update=replace(offered, version="9.2.0")))
    assert window.banner.text.text().startswith("Potluck 9.2.0 is there.")
    window.banner._close.click()
    assert window.banner.isHidden()


def test_an_error_stays_before_newer_and_milder_notices(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    levels = ("error", "warning", "info")
    notices = (Notice(id=n, level=level, text=level) for n, level in enumerate(levels, 1))

    backend.say(home(notices=tuple(notices)))

    assert window.banner.text.text() == "error"


def test_that_chats_are_not_kept_is_said_until_the_person_has_read_it(
    window: MainWindow, chat: Chat, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    why = "The file of your chats cannot be used: it is damaged."
    backend.say(home())
    chat._keeper.unkept.emit(why)
    chat.trouble.emit("Another thing went wrong.")
    assert window.banner.text.text() == "Another thing went wrong."

    window.banner._problem_over.timeout.emit()  # twenty seconds later
    backend.say(home())
    assert window.banner.text.text() == why
    assert window.banner.isVisible()

    qtbot.mouseClick(window.banner._close, Qt.MouseButton.LeftButton)
    backend.say(home())
    assert not window.banner.isVisible()


def test_a_reply_is_replaced_only_where_it_is_seen(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.chat.composer.sent.emit("How?", ())
    backend.replies[-1].finished.emit(ReplyEnd(error="It failed."))

    window.go(window.models)
    qtbot.keyClick(window, Qt.Key.Key_R, CONTROL)
    assert len(backend.chats) == 1
    window.go(window.chat)
    qtbot.keyClick(window, Qt.Key.Key_R, CONTROL)

    assert len(backend.chats) == 2


def test_the_size_of_the_window_is_remembered(
    window: MainWindow, preferences: PreferencesFile
) -> None:
    window.resize(1000, 700)

    window.close()

    assert (preferences.current.width, preferences.current.height) == (1000, 700)


def test_the_theme_is_chosen_and_remembered(
    window: MainWindow, theme: Theme, preferences: PreferencesFile, qtbot: QtBot
) -> None:
    window.go(window.settings)

    qtbot.mouseClick(button(window, "theme-dark"), LEFT)

    assert theme.is_dark
    assert preferences.current.theme == "dark"
    assert button(window, "theme-dark").isChecked()


def test_the_address_for_programs_is_turned_on_and_off(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    backend.say(home())
    toggle = button(window, "api-toggle")
    window.settings.programs.port.setText("8123")
    qtbot.mouseClick(toggle, LEFT)
    assert backend.last("/cluster/listeners").body.port == 8123

    backend.say(home(listeners=(Listener(host="127.0.0.1", port=8123),)))
    assert window.settings.programs.url.text() == "http://127.0.0.1:8123/v1"
    assert toggle.text() == "Turn off"
    qtbot.mouseClick(toggle, LEFT)

    assert "DELETE /cluster/listeners/8123" in backend.paths()


def test_programs_of_other_computers_are_let_in_with_a_key(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    backend.say(home())
    card = window.settings.programs
    card.port.setText("8123")
    card.others.setChecked(True)
    qtbot.mouseClick(card.api, LEFT)
    asked = backend.last("/cluster/listeners").body
    assert (asked.host, asked.port) == ("0.0.0.0", 8123)
    assert len(asked.key) >= 32

    here = home(listeners=(Listener(host="0.0.0.0", port=8123),))
    node = replace(here.node, addresses=("192.168.1.20:47777",))
    backend.say(replace(here, node=node))
    assert card.url.text() == "http://192.168.1.20:8123/v1"
    assert card.key.text() == asked.key
    assert "not encrypted" in card.line.text()

    backend.say(home())
    assert card.key.text() == ""
    assert not card.key.isVisible()
    assert card.others.isVisible()


def test_a_key_that_another_window_made_is_not_known(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    window.go(window.settings)
    backend.say(home(listeners=(Listener(host="0.0.0.0", port=8123),)))

    card = window.settings.programs

    assert not card.key.isVisible()
    assert card.line.text().startswith("Programs on other computers of your network reach it")
    assert card.api.text() == "Turn off"


def test_how_fast_weights_are_sent_is_chosen(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    before = home()
    backend.say(before)
    assert button(window, "sending-0").isChecked()

    qtbot.mouseClick(button(window, "sending-200"), LEFT)
    assert backend.last("/cluster/role").body == RoleRequest(upload_limit_mbit=200)

    backend.say(replace(before, node=replace(before.node, upload_limit_mbit=42)))  # by a command
    assert not any(each.isChecked() for each in window.settings.sending.values())


def test_how_fast_models_are_downloaded_is_chosen(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    before = home()
    backend.say(before)
    assert button(window, "download-0").isChecked()

    qtbot.mouseClick(button(window, "download-5"), LEFT)
    assert backend.last("/cluster/role").body == RoleRequest(download_limit_mb=5)

    backend.say(replace(before, node=replace(before.node, download_limit_mb=5)))
    assert button(window, "download-5").isChecked()


def test_what_closing_the_window_does_is_chosen(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    backend.say(home())
    settings = window.settings
    assert [each.text() for each in settings.closing.values() if each.isChecked()] == [
        "Go on while needed"
    ]
    assert settings.closing_means.text().startswith("A download, or a port that programs use")

    qtbot.mouseClick(button(window, "closing-1"), LEFT)
    assert settings._preferences.current.closing == "tray"
    assert settings.closing_means.text().startswith("The model stays loaded")
    qtbot.mouseClick(button(window, "closing-2"), LEFT)
    assert settings._preferences.current.closing == "quit"


def test_when_an_unused_model_is_unloaded_is_chosen(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    before = home()
    backend.say(replace(before, node=replace(before.node, idle_unload_s=1800.0)))
    assert button(window, "unload-1800").isChecked()

    qtbot.mouseClick(button(window, "unload-0"), LEFT)
    assert backend.last("/cluster/role").body == RoleRequest(idle_unload_s=0)

    backend.say(replace(before, node=replace(before.node, idle_unload_s=None)))
    assert button(window, "unload-0").isChecked()
    backend.say(replace(before, node=replace(before.node, idle_unload_s=42.0)))  # by a command
    assert not any(item.isChecked() for item in window.settings.unloading.values())


def test_a_port_that_is_taken_is_said_beside_it(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.go(window.settings)
    backend.say(home())
    qtbot.mouseClick(button(window, "api-toggle"), LEFT)

    backend.last("/cluster/listeners").call.failed.emit(Problem("Port 8000 is taken."))
    backend.say(home())

    assert window.settings.programs.line.text() == "Port 8000 is taken."


def test_settings_say_what_this_computer_is(window: MainWindow, backend: ScriptedBackend) -> None:
    backend.say(home())

    assert window.settings.name.text() == "Desk"
    assert window.settings.address.text() == "10.0.0.1:4711"
    assert window.settings.node_id.text() == "1111 1111 1111 1111"


def test_settings_rename_and_limit_this_computer(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home())
    page = window.settings
    window.go(page)
    qtbot.mouseClick(page.rename, Qt.MouseButton.LeftButton)
    question = page.findChild(Question)
    assert question is not None
    question.value.setText("Kitchen")

    question.accept()

    asked = backend.asked[-1]
    assert asked.path == f"/cluster/computers/{ME}"
    assert asked.body == ComputerChange(name="Kitchen")
    assert page.memory.text() == "Up to 8 GB for models"
