"""A program that starts with the computer, on request."""

import sys

import pytest
from fake_backend import Server
from pytestqt.qtbot import QtBot
from started import Make, connect

from potluck.system.autostart import FilePlace

pytestmark = [
    pytest.mark.qt,
    pytest.mark.net,
    # The offscreen platform has no tray of its own and no order of windows.
    pytest.mark.qt_log_ignore("systemTrayWindowChanged", r"does not support raise\(\)"),
]


@pytest.mark.parametrize("mode", ["master", "worker"])
def test_it_starts_with_the_computer_only_if_its_owner_ticks_that(
    make: Make, qtbot: QtBot, place: FilePlace, mode: str
) -> None:
    application = make()
    application.preferences.change(mode=mode)
    application.start()
    if application.main is not None:
        application.main.go(application.main.settings)
        box = application.main.settings.start
    else:
        assert application.worker is not None
        box = application.worker.start
    assert box.isVisible()
    assert (box.isChecked(), place.read()) == (False, None)

    box.click()
    assert (box.isChecked(), place.read()) == (True, [sys.executable, "-m", "potluck_app"])
    place.remove()  # in the system's own settings
    box.hide()
    box.show()

    assert not box.isChecked()


def test_a_start_with_the_computer_that_cannot_be_set_is_told(
    make: Make, qtbot: QtBot, place: FilePlace
) -> None:
    place.file.parent.write_text("a file in the way")
    application = make()
    application.preferences.change(mode="worker")
    application.start()
    assert application.worker is not None

    with qtbot.waitSignal(application.backend.problem) as told:
        application.worker.start.click()

    assert told.args is not None
    assert "cannot be changed" in told.args[0]
    assert not application.worker.start.isChecked()


def test_a_main_computer_starts_hidden_in_the_tray_until_it_is_opened(
    make: Make, server: Server, qtbot: QtBot
) -> None:
    application = make(tray=True)
    application.preferences.change(mode="master")
    application.start(hidden=True)
    qtbot.waitUntil(lambda: application.tray is not None)
    assert application.main is None
    assert application.tray is not None
    assert application.tray.status.text() == "Potluck is ready."
    assert application.backend.endpoint is None  # nothing runs that nobody needs

    application.tray.open.trigger()

    assert application.main is not None
    assert application.main.isVisible()
    assert application.tray is None
    qtbot.waitUntil(lambda: "window" in server.backend.held)


def test_a_hidden_start_shows_the_window_to_who_starts_it_again(make: Make, qtbot: QtBot) -> None:
    """As it does in the end on a desktop that has no tray."""
    application = make(tray=False)
    application.preferences.change(mode="master")
    application.start(hidden=True)
    assert application.main is None

    application.show()

    assert application.main is not None
    assert application.main.isVisible()
    connect(application, qtbot)
