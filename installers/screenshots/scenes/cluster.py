"""The Cluster page, its dialogs and menus."""

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.schema import ClusterState, Invite
from potluck.errors import UnreachableError
from potluck.net.transport import _most_telling
from potluck_app.http import Problem
from potluck_app.viewmodels.cluster import Choice, computer_cards
from potluck_app.views.main_window import MainWindow


def _cluster(stage: Stage, state: ClusterState) -> MainWindow:
    window = stage.main()
    window.go(window.cluster)
    stage.backend.say(state)
    return window


@scene
def cluster(stage: Stage) -> QWidget:
    return _cluster(stage, home.home())


@scene
def cluster_streaming(stage: Stage) -> QWidget:
    return _cluster(stage, home.home(streaming=True))


@scene
def cluster_answering(stage: Stage) -> QWidget:
    window = _cluster(stage, home.generating(home.home(), waiting=2))
    window.cluster.model.why.click()
    return window


@scene
def cluster_failed(stage: Stage) -> QWidget:
    return _cluster(stage, home.failed(home.home()))


@scene
def cluster_lost(stage: Stage) -> QWidget:
    return _cluster(stage, home.with_notice(home.without_old_laptop()))


@scene
def cluster_asking(stage: Stage) -> QWidget:
    return _cluster(stage, home.pairing(home.home(), "asking"))


@scene
def cluster_accepted(stage: Stage) -> QWidget:
    return _cluster(stage, home.pairing(home.home(), "accepted"))


@scene
def cluster_refused(stage: Stage) -> QWidget:
    return _cluster(stage, home.pairing(home.home(), "refused"))


@scene
def cluster_alone(stage: Stage) -> QWidget:
    return _cluster(stage, home.alone())


@scene
def cluster_nothing_found(stage: Stage) -> QWidget:
    return _cluster(stage, replace(home.alone(), hint="No other computer has answered."))


@scene
def cluster_restarting(stage: Stage) -> QWidget:
    window = _cluster(stage, home.home())
    stage.backend.lose()
    return window


@scene
def cluster_menu(stage: Stage) -> QWidget:
    window = _cluster(stage, home.home())
    return window.cluster._computers[home.MAC].menu()


def _question(stage: Stage, choice: Choice) -> QWidget:
    """Choose this in the menu of the MacBook, and return the dialog that opens."""
    state = home.home()
    window = _cluster(stage, state)
    card = next(card for card in computer_cards(state) if card.node_id == home.MAC)
    window.cluster._actions.choose(card, choice)
    return stage.dialog()


@scene
def cluster_rename(stage: Stage) -> QWidget:
    return _question(stage, "rename")


@scene
def cluster_limit(stage: Stage) -> QWidget:
    return _question(stage, "limit")


@scene
def cluster_remove(stage: Stage) -> QWidget:
    return _question(stage, "remove")


@scene
def cluster_make_main(stage: Stage) -> QWidget:
    return _question(stage, "main")


@scene
def cluster_test(stage: Stage) -> QWidget:
    window = _cluster(stage, home.home())
    window.cluster._note(home.MAC, "Testing the link…")
    return window


@scene
def cluster_add(stage: Stage) -> QWidget:
    return _cluster(stage, home.alone()).cluster.open_add_dialog()


@scene
def cluster_add_token(stage: Stage) -> QWidget:
    dialog = _cluster(stage, home.alone()).cluster.open_add_dialog()
    error = UnreachableError("192.168.1.20:4711: nothing answers there.")
    dialog._on_not_found(Problem(_most_telling([error]).message))
    dialog._on_invite(Invite(token="POT-" + "7KQ2M9XD" * 6, expires_s=600))
    return dialog


@scene
def cluster_doctor(stage: Stage) -> QWidget:
    dialog = _cluster(stage, home.alone()).cluster.open_doctor()
    dialog.doctor._on_diagnosis(home.DIAGNOSIS)
    return dialog


@scene
def cluster_doctor_looking(stage: Stage) -> QWidget:
    return _cluster(stage, home.alone()).cluster.open_doctor()
