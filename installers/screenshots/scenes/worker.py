"""The window of a computer that helps, the tray, and the questions where there is no tray."""

from pathlib import Path
from time import time

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home, models, said
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.values.schema import ClusterState, Listener, Notice
from potluck.invitation import Contents, write
from potluck_app.opening import Invitation, Opener
from potluck_app.tray import Tray


@scene
def worker(stage: Stage) -> QWidget:
    """The window of a computer that helps another one."""
    return stage.worker(home.lent())


@scene
def worker_gpus(stage: Stage) -> QWidget:
    """A computer that helps, one of whose GPUs stays free for its owner's games."""
    state = home.lent()
    return stage.worker(replace(state, node=replace(state.node, gpus=home.GPUS)))


@scene
def worker_free(stage: Stage) -> QWidget:
    """A computer that is shared and waits for a main computer."""
    return stage.worker(replace(home.lent(asked=True), pairings=()))


@scene
def worker_asked(stage: Stage) -> QWidget:
    """A main computer wants to use this one: both show the same code."""
    return stage.worker(home.lent(asked=True))


@scene
def worker_accepted(stage: Stage) -> QWidget:
    """The main computer was allowed here, and waits for a click over there."""
    return stage.worker(home.pairing(home.lent(asked=True), "accepted"))


@scene
def worker_waiting(stage: Stage) -> QWidget:
    """A computer that was added before, while its main computer is off."""
    return stage.worker(_changed(lent_to=(), member_of=("Living-room PC",)))


@scene
def worker_receiving(stage: Stage) -> QWidget:
    """A computer that helps, while it receives its layers."""
    state = home.lent()
    me = replace(state.computers[0], state="receiving", progress=0.62)
    return stage.worker(replace(state, computers=(me,)))


@scene
def worker_paused(stage: Stage) -> QWidget:
    """A computer whose owner has paused the sharing."""
    return stage.worker(_changed(paused=True, lent_to=()))


@scene
def worker_withheld(stage: Stage) -> QWidget:
    """A computer that pauses by itself while a game is played."""
    return stage.worker(_changed(withheld="games", lent_to=()))


@scene
def worker_leaving(stage: Stage) -> QWidget:
    """A computer that stops to help, until the others do without it."""
    return stage.worker(_changed(leaving=True))


@scene
def worker_restarting(stage: Stage) -> QWidget:
    """The window of a helper while Potluck starts again in the background."""
    window = stage.worker(home.lent())
    stage.backend.lose()
    return window


@scene
def worker_pauses(stage: Stage) -> QWidget:
    """For how long the sharing can be paused."""
    return stage.worker(home.lent()).pauses


@scene
def worker_rules(stage: Stage) -> QWidget:
    """When a computer pauses by itself."""
    return stage.worker(home.lent()).rules


@scene
def tray(stage: Stage) -> QWidget:
    """The menu of the tray icon of a computer that helps."""
    return _tray(stage, home.lent())


@scene
def tray_paused(stage: Stage) -> QWidget:
    """The menu of the tray icon while the sharing is paused."""
    return _tray(stage, _changed(paused=True))


def _tray(stage: Stage, state: ClusterState) -> QWidget:
    stage.backend.say(state)
    return Tray(stage.theme, stage.backend, stage.backend).menu


def _changed(**changes: object) -> ClusterState:
    """A computer that helps, with these fields of its node."""
    state = home.lent()
    return replace(state, node=replace(state.node, **changes))


@scene
def worker_starting(stage: Stage) -> QWidget:
    """The window of a helper while Potluck starts in the background."""
    return stage.worker(None)


@scene
def worker_failed(stage: Stage) -> QWidget:
    """The window of a helper when Potluck cannot be started in the background."""
    window = stage.worker(None)
    stage.backend.fail(said.NOT_STARTED)
    return window


@scene
def worker_engine(stage: Stage) -> QWidget:
    """A helper that has to install the engine, PyTorch, before it can help."""
    state = replace(home.lent(asked=True), pairings=())
    return stage.worker(home.with_engine(state, said.MISSING))


@scene
def worker_engine_fetching(stage: Stage) -> QWidget:
    """A helper that fetches the engine from another computer of the home."""
    state = replace(home.lent(asked=True), pairings=())
    return stage.worker(home.with_engine(state, said.FETCHING))


@scene
def worker_loading(stage: Stage) -> QWidget:
    """A computer that helps, while it loads its layers."""
    state = home.lent()
    me = replace(state.computers[0], state="loading", progress=0.4)
    return stage.worker(replace(state, computers=(me,)))


@scene
def worker_paused_until(stage: Stage) -> QWidget:
    """A computer whose sharing is paused for an hour."""
    return stage.worker(_changed(paused=True, paused_until=time() + 3600, lent_to=()))


@scene
def worker_refused(stage: Stage) -> QWidget:
    """A command of a helper that failed: the line says why."""
    window = stage.worker(home.lent())
    stage.backend.problem.emit(
        "The start with the computer cannot be changed: you are not allowed to."
    )
    return window


@scene
def worker_handed_over(stage: Stage) -> QWidget:
    """A helper whose home has another main computer now: who did that, and what can be done."""
    text = (
        "Living-room PC has made MacBook Air the main computer in its place: this computer helps"
        " MacBook Air now. To help nobody, stop sharing."
    )
    state = _changed(lent_to=("MacBook Air",))
    return stage.worker(replace(state, notices=(Notice(id=1, level="info", text=text),)))


@scene
def worker_needed(stage: Stage) -> QWidget:
    """A helper that leaves, although the model of its home does not fit without it."""
    text = (
        "Living-room PC's model does not fit without this computer, which leaves all the same within"
        " 30 seconds. To go on helping, resume sharing."
    )
    state = _changed(paused=True, leaving=True)
    return stage.worker(replace(state, notices=(Notice(id=1, level="warning", text=text),)))


@scene
def worker_close(stage: Stage) -> QWidget:
    """The question when the window of a helper is closed on a desktop without a tray."""
    application = stage.application("worker", home.lent())
    assert application.worker is not None
    application.worker.close()
    return stage.dialog()


@scene
def main_close(stage: Stage) -> QWidget:
    """The question when the window is closed while something goes on, on a desktop without a tray."""
    application = stage.application("master", _going_on())
    assert application.main is not None
    application.main.close()
    return stage.dialog()


@scene
def invitation(stage: Stage) -> QWidget:
    """The question when a link with an invitation is opened."""
    application = stage.application("master", home.alone())
    Opener(application)._ask_to_lend(Invitation("potluck-", ("192.168.1.20",)))
    return stage.dialog()


@scene
def invitation_refused(stage: Stage) -> QWidget:
    """A link that invites this computer into the Internet is not followed."""
    application = stage.application("master", home.alone())
    contents = Contents(home=bytes(16), secret=bytes(16), addresses=(("203.0.113.9", 4711),))
    link = "potluck://join/" + write(contents)
    Opener(application).open(link, Path())
    assert application.main is not None
    return application.main


@scene
def model_opened(stage: Stage) -> QWidget:
    """The question when a model is opened on a computer that helps."""
    application = stage.application("worker", home.lent())
    Opener(application)._use("/models/phi-4.gguf")
    return stage.dialog()


@scene
def tray_main(stage: Stage) -> QWidget:
    """The menu of the tray icon while the chat window is closed and something goes on without it."""
    stage.backend.say(_going_on())
    return Tray(stage.theme, stage.backend, stage.backend, lends=False).menu


def _going_on() -> ClusterState:
    return replace(
        home.home(),
        listeners=(Listener(host="127.0.0.1", port=8000),),
        downloads=models.DOWNLOADS[:1],
    )
