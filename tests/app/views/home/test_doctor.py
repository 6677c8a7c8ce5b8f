"""The doctor in the window, and the ways to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

import pytest
from fake_backend import computer
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontInfo, QGuiApplication
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.doctor import Diagnosis
from potluck.doctor.sentences import say
from potluck.system.elevation import Outcome
from potluck_app.http import Problem
from potluck_app.views.home.add_computer import AddComputerDialog
from potluck_app.views.home.doctor import DoctorDialog
from potluck_app.views.home.fixing import FixQuestion, FixRow, Means
from potluck_app.views.main_window import MainWindow

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton
HINT = "No other computer was found."
PATH = "/cluster/doctor"
COMMAND = "sudo ufw allow 47777/tcp"
FOUND = Diagnosis(
    findings=(
        say("firewall_blocks", COMMAND, firewall="ufw", port="47777"),
        say("vpn_none"),
    )
)


@pytest.fixture
def page(window: MainWindow) -> MainWindow:
    window.go(window.cluster)
    return window


@pytest.fixture
def dialog(page: MainWindow, backend: ScriptedBackend) -> DoctorDialog:
    backend.say(home())
    return page.cluster.open_doctor()


def test_it_looks_at_once_and_shows_each_finding_with_what_to_do(
    dialog: DoctorDialog, backend: ScriptedBackend
) -> None:
    assert "a few seconds" in dialog.summary.text()
    assert not dialog.again.isEnabled()

    backend.last(PATH).call.done.emit(FOUND)

    problem, well = dialog.findings
    assert problem.accessibleName().startswith("Problem · Firewall · A rule of ufw")
    assert problem.command.text() == COMMAND
    assert well.accessibleName() == "OK · VPN · No VPN is on."
    assert dialog.summary.text() == "The doctor found 1 problem."
    assert dialog.again.isEnabled()


def test_checking_again_replaces_what_was_found(
    dialog: DoctorDialog, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.last(PATH).call.done.emit(FOUND)

    qtbot.mouseClick(dialog.again, LEFT)
    assert len(dialog.findings) == 2  # they stay until there is an answer
    backend.last(PATH).call.done.emit(Diagnosis(findings=FOUND.findings[1:]))

    assert [view.accessibleName() for view in dialog.findings] == ["OK · VPN · No VPN is on."]
    assert backend.paths().count(f"POST {PATH}") == 2


def test_a_node_that_does_not_answer_is_said_and_can_be_asked_again(
    dialog: DoctorDialog, backend: ScriptedBackend
) -> None:
    backend.last(PATH).call.failed.emit(Problem("Potluck does not answer."))

    assert dialog.summary.text() == "Potluck does not answer."
    assert dialog.again.isEnabled()


def test_a_command_and_the_whole_report_can_be_copied(
    dialog: DoctorDialog, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.last(PATH).call.done.emit(FOUND)

    assert dialog.copy.text() == "Copy all findings"
    qtbot.mouseClick(dialog.copy, LEFT)

    first, second = QGuiApplication.clipboard().text().splitlines()
    assert first.startswith("Problem: Firewall: A rule of ufw keeps other computers out. Let")
    assert second == "OK: VPN: No VPN is on."


def test_the_doctor_leads_to_the_address_of_the_other_computer(
    dialog: DoctorDialog, page: MainWindow, qtbot: QtBot
) -> None:
    qtbot.mouseClick(dialog.address, LEFT)

    (add,) = page.findChildren(AddComputerDialog)
    assert add.isVisible()
    assert not dialog.isVisible()


# --- the ways to it


def test_nothing_found_appears_once_the_search_has_lasted(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    looking = page.cluster.looking
    backend.say(home())
    assert looking.title.text() == "Looking for your computers"
    assert not looking.doctor.isVisible()

    backend.say(home(hint=HINT))
    assert looking.title.text() == "Nothing found?"
    qtbot.mouseClick(looking.doctor, LEFT)
    assert len(page.findChildren(DoctorDialog)) == 1
    qtbot.mouseClick(looking.address, LEFT)
    assert len(page.findChildren(AddComputerDialog)) == 1

    backend.say(home())
    assert looking.title.text() == "Looking for your computers"
    assert not looking.doctor.isVisible()


def test_a_person_may_have_the_search_done_again(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    looking = page.cluster.looking
    backend.say(home(hint=HINT))
    qtbot.mouseClick(looking.again, LEFT)

    assert backend.last("/cluster/search").method == "POST"
    assert looking.title.text() == "Looking for your computers"  # though the last state has a hint
    assert not looking.again.isVisible()

    page.go(page.chat)
    qtbot.keyClick(page, Qt.Key.Key_F5)
    assert page.cluster.isVisible()
    assert [asked.path for asked in backend.asked].count("/cluster/search") == 2


def test_a_search_that_is_asked_for_is_seen_beside_other_computers(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(computer("Mac", "2")))
    assert not page.cluster.looking.isVisible()

    page.cluster._looks.setInterval(200)
    qtbot.keyClick(page, Qt.Key.Key_F5)
    assert page.cluster.looking.isVisible()
    qtbot.waitUntil(lambda: not page.cluster.looking.isVisible())


def test_who_has_a_second_computer_is_asked_nothing(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(computer("Mac", "2", online=False, state="lost"), hint=HINT))

    assert not page.cluster.looking.isVisible()


def test_settings_and_the_add_dialog_lead_to_it_too(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home())
    add = page.cluster.open_add_dialog()
    qtbot.mouseClick(add.doctor, LEFT)
    assert not add.isVisible()
    assert len(page.findChildren(DoctorDialog)) == 1

    page.go(page.settings)
    button = page.settings.findChild(QPushButton, "settings-doctor")
    assert isinstance(button, QPushButton)
    qtbot.mouseClick(button, LEFT)
    assert len(page.findChildren(DoctorDialog)) == 2


# --- what only an administrator may do

UFW = "sudo ufw allow 47777/tcp && sudo ufw allow 5353/udp"
KEPT_OUT = Diagnosis(
    findings=(say("firewall_blocks", UFW, firewall="ufw", port="47777"), say("vpn_none"))
)


@dataclass
class System:
    """Stands in for the system: what it was asked to run, and what the person there decides, once `asked` is set."""

    asked: Event = field(default_factory=Event)
    decides: Outcome = "done"
    ran: list[Sequence[str]] = field(default_factory=list[Sequence[str]])

    def run(self, words: Sequence[str]) -> Outcome:
        self.ran.append(words)
        assert self.asked.wait(30)
        return self.decides


@pytest.fixture
def system() -> System:
    system = System()
    system.asked.set()
    return system


@pytest.fixture
def fix(page: MainWindow, backend: ScriptedBackend, system: System) -> FixRow:
    def asking(command: str) -> Sequence[str] | None:
        return ["pkexec", command] if command == UFW else None

    backend.say(home())
    means = Means(asking=asking, run=system.run)
    dialog = DoctorDialog(page.cluster, page.cluster._theme, backend, means=means)
    dialog.open()
    backend.last(PATH).call.done.emit(KEPT_OUT)
    first, second = dialog.findings
    assert second.fix is None
    assert first.fix is not None
    return first.fix


def question(fix: FixRow, qtbot: QtBot) -> FixQuestion:
    qtbot.mouseClick(fix.button, LEFT)
    return fix.window().findChildren(FixQuestion)[-1]


def test_nothing_is_run_before_the_person_has_read_it_and_agreed(
    fix: FixRow, system: System, qtbot: QtBot
) -> None:
    asked = question(fix, qtbot)
    assert asked.command.text() == f"pkexec '{UFW}'"
    assert QFontInfo(asked.command.font()).fixedPitch()
    qtbot.mouseClick(asked.no, LEFT)
    assert system.ran == []
    assert fix.button.isEnabled()


def test_the_doctor_looks_again_when_it_is_done(
    fix: FixRow, system: System, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    with qtbot.waitSignal(fix.fixing.fixed):
        qtbot.mouseClick(question(fix, qtbot).yes, LEFT)

    assert system.ran == [["pkexec", UFW]]
    assert fix.line.text() == "Done. The doctor looks again."
    assert backend.paths().count(f"POST {PATH}") == 2


@pytest.mark.parametrize(
    ("decides", "said"),
    [
        ("refused", "Nobody allowed it, so nothing was changed."),
        (
            "failed",
            "It did not work. Copy the command and run it in a terminal: there you see why.",
        ),
        (
            "unasked",
            "Your system has no way to ask here. Copy the command and run it in a terminal.",
        ),
        (
            "unknown",
            "Your system has not answered for three minutes, so what came of it is not known. Check again.",
        ),
    ],
)
def test_what_did_not_happen_is_said_and_may_be_tried_again(
    fix: FixRow, system: System, backend: ScriptedBackend, qtbot: QtBot, decides: Outcome, said: str
) -> None:
    system.decides = decides
    qtbot.mouseClick(question(fix, qtbot).yes, LEFT)
    qtbot.waitUntil(lambda: fix.line.text() == said)

    assert fix.button.isEnabled()
    assert backend.paths().count(f"POST {PATH}") == 1


def test_a_question_that_is_open_is_not_asked_twice_when_the_doctor_looks_again(
    fix: FixRow, system: System, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    dialog = fix.window()
    assert isinstance(dialog, DoctorDialog)
    system.asked.clear()
    system.decides = "refused"
    qtbot.mouseClick(question(fix, qtbot).yes, LEFT)
    qtbot.mouseClick(dialog.again, LEFT)
    backend.last(PATH).call.done.emit(KEPT_OUT)

    row = dialog.findings[0].fix
    assert row is not None
    assert row is not fix
    assert not row.button.isEnabled()
    assert row.line.text() == "Your system asks for an administrator…"
    system.asked.set()
    qtbot.waitUntil(row.button.isEnabled)
    assert row.line.text() == "Nobody allowed it, so nothing was changed."
    assert len(system.ran) == 1


def test_where_the_system_cannot_be_asked_there_is_the_command_alone(
    dialog: DoctorDialog, backend: ScriptedBackend
) -> None:
    backend.last(PATH).call.done.emit(FOUND)
    assert [view.fix for view in dialog.findings] == [None, None]
