"""The Settings page from its top to its end."""

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home, said
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.values.network import Network
from potluck.api.values.schema import Listener
from potluck_app.http import Problem
from potluck_app.views.main_window import MainWindow


def _settings(stage: Stage) -> MainWindow:
    window = stage.main()
    state = replace(home.home(), listeners=(Listener(host="127.0.0.1", port=8000),))
    stage.backend.say(state)
    window.go(window.settings)
    return window


@scene
def settings(stage: Stage) -> QWidget:
    """The settings: appearance, language, and this computer."""
    return _settings(stage)


@scene
def settings_middle(stage: Stage) -> QWidget:
    """The settings: unused models, downloads, and what is sent."""
    window = _settings(stage)
    stage.scroll(window.settings, 0.5)
    return window


@scene
def settings_about(stage: Stage) -> QWidget:
    """The end of the settings: the address for other programs, and about Potluck."""
    return _about(stage)


@scene
def settings_licences(stage: Stage) -> QWidget:
    """The packages that Potluck uses, with their licences."""
    return _settings(stage).settings.about.show_licences()


@scene
def settings_programs(stage: Stage) -> QWidget:
    """The address for programs on other computers of the network, with its key."""
    return _programs(stage, (Listener(host="0.0.0.0", port=8000),))  # noqa: S104 - a picture


@scene
def settings_programs_off(stage: Stage) -> QWidget:
    """The address for other programs while it is off."""
    return _programs(stage, ())


@scene
def settings_programs_taken(stage: Stage) -> QWidget:
    """The address for other programs cannot be opened: its port is taken."""
    window = _programs(stage, ())
    taken = "Port 8000 is taken by another program: end that one, or choose another port."
    window.settings.programs._on_problem(Problem(taken))
    stage.reveal(window.settings, window.settings.programs)
    return window


@scene
def settings_engine(stage: Stage) -> QWidget:
    """Which engine computes here, with the button to have it installed anew."""
    return _engine(stage)


@scene
def settings_engine_repair(stage: Stage) -> QWidget:
    """The question before the engine is installed anew."""
    _engine(stage).settings.engine.repair.click()
    return stage.dialog()


@scene
def settings_network(stage: Stage) -> QWidget:
    """The networks of this computer, of which Potluck chooses by itself."""
    return _network(stage, home.NETWORK)


@scene
def settings_network_gone(stage: Stage) -> QWidget:
    """A network that was chosen is not there now, and the port that was chosen is taken."""
    taken = (
        "Potluck cannot listen at port 48000: another program uses it. Choose another. Until then, it"
        " listens at port 47777."
    )
    gone = replace(
        home.NETWORK,
        chosen=("Ethernet 2",),
        missing=("Ethernet 2",),
        fixed_port=48000,
        port_problem=taken,
    )
    return _network(stage, gone)


@scene
def settings_language(stage: Stage) -> QWidget:
    """Another language was chosen."""
    window = _settings(stage)
    window.settings._choose_language("de")
    return window


@scene
def settings_report(stage: Stage) -> QWidget:
    """A report was copied."""
    window = _about(stage)
    window.settings.about._copy_report()
    return window


@scene
def settings_gpus(stage: Stage) -> QWidget:
    """One of two GPUs of this computer stays free for other things."""
    window = _settings(stage)
    state = home.home()
    stage.backend.say(replace(state, node=replace(state.node, gpus=home.GPUS)))
    stage.reveal(window.settings, window.settings.gpus)
    return window


def _about(stage: Stage) -> MainWindow:
    """Show the end of the page, with a system that was invented as the computer is."""
    window = _settings(stage)
    window.settings.about.lines.setText("\n".join(said.SYSTEM))
    stage.scroll(window.settings, 1.0)
    return window


def _engine(stage: Stage) -> MainWindow:
    """Show the part about the engine."""
    window = _settings(stage)
    stage.backend.say(replace(home.home(), engine=said.READY))
    stage.reveal(window.settings, window.settings.engine)
    return window


def _network(stage: Stage, network: Network) -> MainWindow:
    """Show the card of the network."""
    window = _settings(stage)
    state = home.home()
    stage.backend.say(replace(state, node=replace(state.node, network=network)))
    stage.reveal(window.settings, window.settings.network)
    return window


def _programs(stage: Stage, listeners: tuple[Listener, ...]) -> MainWindow:
    """Show the card for other programs."""
    window = _settings(stage)
    for listener in listeners:
        stage.backend.show_key(listener, "sX0w2Yb7C1r9pZk4Qe8vTn5uHm3aLd6f")
    stage.backend.say(replace(home.home(), listeners=listeners))
    stage.reveal(window.settings, window.settings.programs)
    return window
