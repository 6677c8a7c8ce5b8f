"""The window of a computer that helps, the tray, and the questions where there is no tray."""

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.schema import ClusterState
from potluck_app.tray import Tray


@scene
def worker(stage: Stage) -> QWidget:
    return stage.worker(home.lent())


@scene
def worker_free(stage: Stage) -> QWidget:
    return stage.worker(replace(home.lent(asked=True), pairings=()))


@scene
def worker_asked(stage: Stage) -> QWidget:
    return stage.worker(home.lent(asked=True))


@scene
def worker_accepted(stage: Stage) -> QWidget:
    return stage.worker(home.pairing(home.lent(asked=True), "accepted"))


@scene
def worker_waiting(stage: Stage) -> QWidget:
    return stage.worker(_changed(lent_to=(), member_of=("Living-room PC",)))


@scene
def worker_receiving(stage: Stage) -> QWidget:
    state = home.lent()
    me = replace(state.computers[0], state="receiving", progress=0.62)
    return stage.worker(replace(state, computers=(me,)))


@scene
def worker_paused(stage: Stage) -> QWidget:
    return stage.worker(_changed(paused=True, lent_to=()))


@scene
def worker_withheld(stage: Stage) -> QWidget:
    return stage.worker(_changed(withheld="games", lent_to=()))


@scene
def worker_leaving(stage: Stage) -> QWidget:
    return stage.worker(_changed(leaving=True))


@scene
def worker_restarting(stage: Stage) -> QWidget:
    window = stage.worker(home.lent())
    stage.backend.lose()
    return window


@scene
def worker_pauses(stage: Stage) -> QWidget:
    return stage.worker(home.lent()).pauses


@scene
def worker_rules(stage: Stage) -> QWidget:
    return stage.worker(home.lent()).rules


@scene
def tray(stage: Stage) -> QWidget:
    return _tray(stage, home.lent())


@scene
def tray_paused(stage: Stage) -> QWidget:
    return _tray(stage, _changed(paused=True))


def _tray(stage: Stage, state: ClusterState) -> QWidget:
    stage.backend.say(state)
    return Tray(stage.theme, stage.backend, stage.backend).menu


def _changed(**changes: object) -> ClusterState:
    """A computer that helps, with these fields of its node."""
    state = home.lent()
    return replace(state, node=replace(state.node, **changes))
