"""The Cluster page, its dialogs and menus."""

from msgspec.structs import replace
from PySide6.QtWidgets import QWidget
from screenshots import home, said
from screenshots.scenes.registry import scene
from screenshots.stage import Stage

from potluck.api.values.pairing import Invite
from potluck.api.values.schema import ClusterState
from potluck.errors import UnreachableError
from potluck.invitation import Contents, write
from potluck.net.transport import _most_telling
from potluck.wire.token import INVITE_LIFETIME_S
from potluck_app import wording
from potluck_app.http import Problem
from potluck_app.viewmodels.cluster import Choice, computer_cards
from potluck_app.views.home.doctor import DoctorDialog
from potluck_app.views.home.fixing import Means
from potluck_app.views.main_window import MainWindow


def _cluster(stage: Stage, state: ClusterState) -> MainWindow:
    window = stage.main()
    window.go(window.cluster)
    stage.backend.say(state)
    return window


@scene
def cluster(stage: Stage) -> QWidget:
    """The computers of the home, the model that they run, and a computer that wants to join."""
    return _cluster(stage, home.home())


@scene
def cluster_streaming(stage: Stage) -> QWidget:
    """The Cluster page while a computer receives its layers."""
    return _cluster(stage, home.home(streaming=True))


@scene
def cluster_answering(stage: Stage) -> QWidget:
    """The Cluster page while an answer is written and others wait, with why the model runs as it does."""
    window = _cluster(stage, home.generating(home.home(), waiting=2))
    window.cluster.model.why.click()
    return window


@scene
def cluster_pictures(stage: Stage) -> QWidget:
    """A model that sees, and which computer reads pictures for it."""
    state = home.home()
    plan = replace(home.PLAN, explanation=f"{home.PLAN.explanation}\n{said.VIEWED}")
    computers = tuple(
        replace(computer, state="ready", detail="") if computer.node_id == home.GAMING else computer
        for computer in state.computers
    )
    model = replace(state.model, name="Qwen3-VL 32B", plan=plan)
    window = _cluster(stage, replace(state, model=model, computers=computers))
    window.cluster.model.why.click()
    return window


@scene
def cluster_failed(stage: Stage) -> QWidget:
    """A model that does not fit on the computers of the home."""
    return _cluster(stage, home.failed(home.home()))


@scene
def cluster_lost(stage: Stage) -> QWidget:
    """The Cluster page after a computer stopped answering."""
    return _cluster(stage, home.with_notice(home.without_old_laptop()))


@scene
def cluster_asking(stage: Stage) -> QWidget:
    """A computer that was just found and is asked for its code."""
    return _cluster(stage, home.pairing(home.home(), "asking"))


@scene
def cluster_accepted(stage: Stage) -> QWidget:
    """A computer that was added here, and waits for a click over there."""
    return _cluster(stage, home.pairing(home.home(), "accepted"))


@scene
def cluster_refused(stage: Stage) -> QWidget:
    """A computer whose owner said no."""
    return _cluster(stage, home.pairing(home.home(), "refused"))


@scene
def cluster_alone(stage: Stage) -> QWidget:
    """The Cluster page while other computers are looked for."""
    return _cluster(stage, home.alone())


@scene
def cluster_first_found(stage: Stage) -> QWidget:
    """The first other computer was found: both screens show the same code."""
    return _cluster(stage, home.first_found())


@scene
def cluster_nothing_found(stage: Stage) -> QWidget:
    """The Cluster page when no other computer was found."""
    return _cluster(stage, replace(home.alone(), hint="No other computer has answered."))


@scene
def cluster_restarting(stage: Stage) -> QWidget:
    """The Cluster page while Potluck starts again in the background."""
    window = _cluster(stage, home.home())
    stage.backend.lose()
    return window


@scene
def cluster_menu(stage: Stage) -> QWidget:
    """What can be done with a computer of the home."""
    window = _cluster(stage, home.home())
    return window.cluster._computers[home.MAC].menu()


def _question(
    stage: Stage, choice: Choice, node_id: str = home.MAC, state: ClusterState | None = None
) -> QWidget:
    """Choose this in the menu of a computer, the MacBook if no other, and return the dialog that opens."""
    state = state or home.home()
    window = _cluster(stage, state)
    card = next(card for card in computer_cards(state) if card.node_id == node_id)
    window.cluster._actions.choose(card, choice)
    return stage.dialog()


@scene
def cluster_rename(stage: Stage) -> QWidget:
    """Giving a computer another name."""
    return _question(stage, "rename")


@scene
def cluster_limit(stage: Stage) -> QWidget:
    """Limiting the memory that models may have on a computer."""
    return _question(stage, "limit")


@scene
def cluster_remove(stage: Stage) -> QWidget:
    """The question before a computer is removed from the home."""
    return _question(stage, "remove")


@scene
def cluster_make_main(stage: Stage) -> QWidget:
    """The question before another computer becomes the main one."""
    return _question(stage, "main")


@scene
def cluster_test(stage: Stage) -> QWidget:
    """A computer whose link is being tested."""
    window = _cluster(stage, home.home())
    window.cluster._note(home.MAC, "Testing the link…")
    return window


@scene
def cluster_add(stage: Stage) -> QWidget:
    """The ways to add a computer that does not appear by itself."""
    return _cluster(stage, home.alone()).cluster.open_add_dialog()


@scene
def cluster_add_token(stage: Stage) -> QWidget:
    """The invitation for a computer without a screen, as a command and as a QR code."""
    dialog = _cluster(stage, home.alone()).cluster.open_add_dialog()
    address = ("192.168.1.20", 4711)
    made = Contents(home=bytes(range(16)), secret=bytes(range(16)), addresses=(address,))
    dialog._on_invite(Invite(token=write(made), expires_s=INVITE_LIFETIME_S))
    return dialog


@scene
def cluster_doctor(stage: Stage) -> QWidget:
    """The doctor, which found a firewall in the way and says what to do."""
    return _doctor(stage)


@scene
def cluster_doctor_fix(stage: Stage) -> QWidget:
    """What the system is about to be asked to run as an administrator."""
    (fix,) = (view.fix for view in _doctor(stage).findings if view.fix is not None)
    fix.button.click()
    return stage.dialog()


def _doctor(stage: Stage) -> DoctorDialog:
    """The doctor on a computer of which the system can be asked for an administrator."""
    page = _cluster(stage, home.alone()).cluster
    ufw = "ufw allow 47777/tcp && ufw allow 5353/udp"
    means = Means(
        asking=lambda command: (
            ["/usr/bin/pkexec", "/bin/sh", "-c", ufw] if "ufw" in command else None
        )
    )
    dialog = DoctorDialog(page, page._theme, stage.backend, page._open_address, means)
    dialog.open()
    dialog.doctor._on_diagnosis(said.DIAGNOSIS)
    return dialog


@scene
def cluster_doctor_looking(stage: Stage) -> QWidget:
    """The doctor while it looks."""
    return _cluster(stage, home.alone()).cluster.open_doctor()


@scene
def cluster_found(stage: Stage) -> QWidget:
    """A computer that was found and can be added."""
    return _cluster(stage, replace(home.home(), pairings=()))


@scene
def cluster_pairing_failed(stage: Stage) -> QWidget:
    """A computer that could not be added, and why."""
    state = home.pairing(home.home(), "failed")
    said = "The connection to the other computer ended. Nothing was paired; try again."
    pairings = tuple(replace(each, message=said) for each in state.pairings)
    return _cluster(stage, replace(state, pairings=pairings))


@scene
def cluster_idle(stage: Stage) -> QWidget:
    """The computers of the home before a model is loaded."""
    return _cluster(stage, home.idle(home.home()))


@scene
def cluster_loading(stage: Stage) -> QWidget:
    """The Cluster page while the computers load their layers."""
    return _cluster(stage, home.loading(home.home()))


@scene
def cluster_large(stage: Stage) -> QWidget:
    """A large home: two graphics cards in one computer, an older version, a firewall, a lost computer."""
    return _cluster(stage, home.large())


@scene
def cluster_menu_self(stage: Stage) -> QWidget:
    """What can be done with this computer itself."""
    window = _cluster(stage, home.home())
    return window.cluster._computers[home.ME].menu()


@scene
def cluster_menu_paused(stage: Stage) -> QWidget:
    """What can be done with a computer that this home leaves out."""
    window = _cluster(stage, home.set_aside(home.home()))
    return window.cluster._computers[home.GAMING].menu()


@scene
def cluster_rename_self(stage: Stage) -> QWidget:
    """Giving this computer another name."""
    return _question(stage, "rename", home.ME)


@scene
def cluster_make_main_answering(stage: Stage) -> QWidget:
    """The question before another computer becomes the main one, while an answer is written."""
    return _question(stage, "main", state=home.generating(home.home()))


@scene
def cluster_handing_over(stage: Stage) -> QWidget:
    """The home is handed over to another computer."""
    window = _cluster(stage, home.idle(home.home()))
    window.cluster._note(home.MAC, "Handing over…")
    return window


@scene
def cluster_handed_over(stage: Stage) -> QWidget:
    """The computer that was made the main one: its window says who did that, and how to undo it."""
    return _cluster(stage, home.handed_over())


@scene
def cluster_tested(stage: Stage) -> QWidget:
    """A computer whose link was just tested."""
    window = _cluster(stage, home.home())
    line = f"Wi-Fi · {wording.link(52e6, 3.0)}"
    window.cluster._note(home.MAC, f"{line}, just tested")
    return window


@scene
def cluster_add_not_found(stage: Stage) -> QWidget:
    """No computer answers at the address that was typed, and why that may be."""
    dialog = _cluster(stage, home.alone()).cluster.open_add_dialog()
    error = UnreachableError("192.168.1.24:47777: nothing answers there.")
    dialog._on_not_found(Problem(_most_telling([error]).message))
    return dialog


@scene
def cluster_add_looking(stage: Stage) -> QWidget:
    """A computer is looked for at the address that was typed."""
    dialog = _cluster(stage, home.alone()).cluster.open_add_dialog()
    dialog.address.setText("study-pc.local")
    dialog._connect()
    return dialog


@scene
def cluster_doctor_well(stage: Stage) -> QWidget:
    """The doctor, which found nothing in the way."""
    dialog = _cluster(stage, home.alone()).cluster.open_doctor()
    dialog.doctor._on_diagnosis(said.WELL)
    return dialog


@scene
def cluster_doctor_many(stage: Stage) -> QWidget:
    """The doctor, which found several things, the worst first."""
    dialog = _cluster(stage, home.alone()).cluster.open_doctor()
    dialog.doctor._on_diagnosis(said.MANY)
    return dialog


@scene
def cluster_troubles(stage: Stage) -> QWidget:
    """A slow computer, one whose memory did not suffice, and one that is being connected again."""
    return _cluster(stage, home.troubled())
