"""The Settings page from its top to its end."""

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.schema import Listener
from potluck_app.views.main_window import MainWindow


def _settings(stage: Stage) -> MainWindow:
    window = stage.main()
    state = replace(home.home(), listeners=(Listener(host="127.0.0.1", port=8000),))
    stage.backend.say(state)
    window.go(window.settings)
    return window


@scene
def settings(stage: Stage) -> QWidget:
    return _settings(stage)


@scene
def settings_middle(stage: Stage) -> QWidget:
    window = _settings(stage)
    stage.scroll(window.settings, 0.5)
    return window


@scene
def settings_about(stage: Stage) -> QWidget:
    window = _settings(stage)
    stage.scroll(window.settings, 1.0)
    return window


@scene
def settings_licences(stage: Stage) -> QWidget:
    return _settings(stage).settings.about.show_licences()
