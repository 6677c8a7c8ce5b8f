"""The card of the Settings page about newer versions of Potluck, in each of its phases."""

from pathlib import Path

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck import __version__
from potluck.api.values.schema import ClusterState
from potluck.api.values.update import HomesVersion, Phase, Update
from potluck.cluster.updating.sentences import FOLLOWS, HEARD, NEWEST, SAYS, why_left
from potluck.update.versions import Failed
from potluck.update.ways import CHECKOUT, how_to_install
from potluck_app.views.main_window import MainWindow

OLD, NEW, MB = "0.0.9", "0.2.0", 10**6
PACKAGE = Path("/home/anna/.local/share/potluck/updates/potluck_0.2.0_amd64.deb")
OFFLINE = (
    "The server of releases does not answer. Check the Internet connection and try again later."
)
OTHERS = (
    HomesVersion(name="MacBook Air", version="0.1.0", message=FOLLOWS),
    HomesVersion(name="Old laptop", version="0.1.0", message=HEARD),
    HomesVersion(name="Gaming PC", version=NEW),
)


@scene
def chat_update(stage: Stage) -> QWidget:
    """A line above the chat says that there is a newer version of Potluck."""
    window = stage.talking()
    stage.backend.say(replace(home.home(), update=_in("offered")))
    return window


@scene
def settings_update(stage: Stage) -> QWidget:
    """The settings before a newer version of Potluck was looked for."""
    return _show(stage, _in("quiet"))


@scene
def settings_update_looking(stage: Stage) -> QWidget:
    """A newer version of Potluck is looked for."""
    return _show(stage, _in("looking"))


@scene
def settings_update_newest(stage: Stage) -> QWidget:
    """There is no newer version of Potluck, and the one before can be gone back to."""
    return _show(stage, replace(_in("quiet"), message=NEWEST, allowed=True, before="0.0.9"))


@scene
def settings_update_offline(stage: Stage) -> QWidget:
    """A newer version of Potluck was looked for, but the server does not answer."""
    return _show(stage, replace(_in("quiet"), message=OFFLINE, failed=True))


@scene
def settings_update_offered(stage: Stage) -> QWidget:
    """A newer version of Potluck is there, which Potluck can install by itself."""
    return _show(stage, _in("offered"))


@scene
def settings_update_package(stage: Stage) -> QWidget:
    """A newer version of Potluck is there, whose package its owner installs."""
    return _show(stage, replace(_in("offered"), replaces=False))


@scene
def settings_update_fetching(stage: Stage) -> QWidget:
    """A newer version of Potluck is fetched from another computer of the home."""
    coming = replace(_in("fetching"), nbytes=92 * MB, done=38 * MB, source="MacBook Air")
    window = _show(stage, replace(coming, computers=OTHERS))
    window.settings.update_card.pace.setText("12 MB/s · 5 s left")
    window.settings.update_card.pace.show()
    return window


@scene
def settings_update_downloading(stage: Stage) -> QWidget:
    """A newer version of Potluck is fetched, and it is not known yet from where."""
    return _show(stage, replace(_in("fetching"), nbytes=92 * MB))


@scene
def settings_update_trying(stage: Stage) -> QWidget:
    """A newer version of Potluck was fetched, and is tried before it is used."""
    return _show(stage, _in("trying"))


@scene
def settings_update_waiting(stage: Stage) -> QWidget:
    """A newer version of Potluck is ready, and waits until nothing is answered."""
    return _show(stage, replace(_in("waiting"), computers=OTHERS))


@scene
def settings_update_switching(stage: Stage) -> QWidget:
    """Potluck starts again with the newer version."""
    return _show(stage, _in("switching"))


@scene
def settings_update_fetched(stage: Stage) -> QWidget:
    """The package of a newer version is here, and what its owner does with it."""
    there = replace(_in("fetched"), replaces=False, message=how_to_install("deb", PACKAGE))
    return _show(stage, there)


@scene
def settings_update_failed(stage: Stage) -> QWidget:
    """A newer version of Potluck did not start on this computer."""
    why = "It was started 3 times and never came up."
    text = why_left(Failed(NEW, why))
    return _show(stage, replace(_in("offered"), failed=True, message=text))


@scene
def settings_update_left(stage: Stage) -> QWidget:
    """The owner of this computer went back from a newer version of Potluck."""
    text = why_left(Failed(NEW, "", by_owner=True))
    return _show(stage, replace(_in("offered"), left=True, message=text))


@scene
def settings_update_by_hand(stage: Stage) -> QWidget:
    """A Potluck that its owner updates in another way."""
    return _show(stage, replace(_in("manual"), message=CHECKOUT))


@scene
def settings_update_done(stage: Stage) -> QWidget:
    """The newer version runs, and this window is still one of the version before."""
    done = replace(_in("quiet"), message=NEWEST, before=__version__, computers=OTHERS)
    return _show(stage, done, runs=NEW)


@scene
def settings_update_older(stage: Stage) -> QWidget:
    """A version before this window's still runs in the background."""
    return _show(stage, _in("quiet"), runs=OLD)


@scene
def settings_update_restart(stage: Stage) -> QWidget:
    """The question before the version in the background is restarted."""
    window = _show(stage, _in("quiet"), runs=OLD)
    window.settings.update_card.restart.click()
    return stage.dialog()


@scene
def worker_update_quiet(stage: Stage) -> QWidget:
    """The window of a helper, while no newer version is known."""
    return stage.worker(_helper(_in("quiet")))


@scene
def worker_update_waiting(stage: Stage) -> QWidget:
    """A helper that waits for its main computer, and can go back to the version before."""
    state = _helper(replace(_in("quiet"), before=OLD))
    return stage.worker(replace(state, node=replace(state.node, lent_to=(), member_of=("Attic",))))


@scene
def worker_update_failed(stage: Stage) -> QWidget:
    """The window of a helper after an update that did not work."""
    return stage.worker(_helper(replace(_in("offered"), failed=True)))


@scene
def worker_update_runs(stage: Stage) -> QWidget:
    """A newer version runs, and the window of a helper is of the version before."""
    state = _helper(_in("quiet"))
    return stage.worker(replace(state, node=replace(state.node, version=NEW)))._open_update()


@scene
def worker_update(stage: Stage) -> QWidget:
    """The window of a helper while there is a newer version of Potluck."""
    return stage.worker(_helper(_in("offered")))


@scene
def worker_update_offered(stage: Stage) -> QWidget:
    """The newer version of Potluck in the window of a helper."""
    return stage.worker(_helper(_in("offered")))._open_update()


def _helper(update: Update) -> ClusterState:
    state = home.lent()
    return replace(state, node=replace(state.node, version=__version__), update=update)


def _in(phase: Phase) -> Update:
    """Return an update in a phase, with what the node says of that."""
    is_known = phase not in ("quiet", "looking", "manual")
    return Update(phase=phase, message=SAYS.get(phase, ""), version=NEW if is_known else "")


def _show(stage: Stage, update: Update, *, runs: str = __version__) -> MainWindow:
    """Show the card in a home whose node has this version."""
    window, state = stage.main(), home.home()
    stage.backend.say(replace(state, node=replace(state.node, version=runs), update=update))
    window.go(window.settings)
    stage.reveal(window.settings, window.settings.update_card)
    return window
