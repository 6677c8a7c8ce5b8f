"""The Cluster page: computers, layers, adding one by its digits."""

import msgspec
import pytest
from fake_backend import PLAN, computer
from PySide6.QtCore import QCoreApplication, QEvent, Qt
from PySide6.QtWidgets import QLabel, QMenu, QScrollArea
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, pairing, running_model, study_pc

from potluck.api.values.network import Medium
from potluck.api.values.schema import ClusterState, ComputerChange, LinkTest, MainRequest, Transfer
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.viewmodels.model_card import Segment
from potluck_app.views.home.add_computer import AddComputerDialog
from potluck_app.views.home.cards import ComputerCardView
from potluck_app.views.home.computer_actions import Question
from potluck_app.views.home.layer_bar import LayerBar
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.dialogs import Confirmation

pytestmark = pytest.mark.qt

MAC = computer("MacBook Air", "2", color=1)
LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def page(window: MainWindow) -> MainWindow:
    window.go(window.cluster)
    return window


def names(window: MainWindow) -> list[str]:
    return [card.name.whole_text() for card in window.cluster._computers.values()]


def test_the_page_shows_model_computers_and_layers(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(MAC, model=running_model()))

    assert (
        page.cluster.subtitle.text() == "Desk and MacBook Air connected · 16 GB usable for models"
    )
    assert page.cluster.model.name.whole_text() == "Qwen3 8B"
    assert page.cluster.model.bar.isVisible()
    assert names(page) == ["Desk", "MacBook Air"]
    assert not page.cluster.looking.isVisible()


def test_alone_it_looks_for_others(page: MainWindow, backend: ScriptedBackend) -> None:
    backend.say(home())

    assert page.cluster.looking.isVisible()
    assert page.cluster.model.choose.isVisible()


def test_cards_stay_the_same_widgets_while_their_computers_change(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(MAC))
    before = dict(page.cluster._computers)

    moving = computer("MacBook Air", "2", state="receiving", progress=0.5)
    transfer = Transfer(node_id=moving.node_id, name="Mac", sent=1, total=2)
    backend.say(home(moving, computer("Attic", "4"), transfers=(transfer,)))

    assert names(page) == ["Desk", "Attic", "MacBook Air"]
    after = page.cluster._computers
    assert all(after[node_id] is card for node_id, card in before.items())
    assert after[moving.node_id].pill.text() == "Receiving layers 50 %"


def test_a_command_that_fails_is_one_line_that_can_be_dismissed(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(study_pc()))

    backend.last("/cluster/pairings").call.failed.emit(Problem("Study PC does not answer."))

    assert page.banner.isVisible()
    assert page.banner.text.text() == "Study PC does not answer."
    qtbot.mouseClick(page.banner._close, LEFT)
    assert not page.banner.isVisible()


def choose(page: MainWindow, node_id: str, choice: str) -> None:
    """Choose in the menu of a computer's card."""
    menu = page.cluster._computers[node_id].menu()
    (action,) = [a for a in menu.actions() if a.objectName() == f"computer-{choice}"]
    action.trigger()


def test_a_computer_is_made_the_main_one_after_a_question(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(MAC, model=running_model(answering=1)))

    choose(page, MAC.node_id, "main")
    question = next(q for q in page.cluster.findChildren(Confirmation) if q.isVisible())
    said = " ".join(each.text() for each in question.findChildren(QLabel))
    assert "Your chats and models stay on this computer" in said
    assert "The answer that is under way is stopped." in said
    path = f"/cluster/computers/{MAC.node_id}/main"
    assert f"POST {path}" not in backend.paths()
    qtbot.mouseClick(question.yes, LEFT)

    assert backend.last(path).body == MainRequest(stop_answers=True)


def test_a_computer_is_renamed_and_limited(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(MAC))
    path = f"/cluster/computers/{MAC.node_id}"
    for choice, text, change in (
        ("rename", " Attic ", ComputerChange(name="Attic")),
        ("limit", "4,5 GB", ComputerChange(memory=4_500_000_000)),
    ):
        choose(page, MAC.node_id, choice)
        question = next(q for q in page.cluster.findChildren(Question) if q.isVisible())
        question.value.setText(text)
        qtbot.mouseClick(question.yes, LEFT)
        assert backend.last(path).body == change


def test_a_limit_that_is_no_number_cannot_be_set(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(MAC))
    choose(page, MAC.node_id, "limit")
    question = page.cluster.findChild(Question)
    assert question is not None

    question.value.setText("a lot")

    assert not question.yes.isEnabled()


def test_a_computer_is_paused_and_resumed(page: MainWindow, backend: ScriptedBackend) -> None:
    backend.say(home(MAC))
    choose(page, MAC.node_id, "pause")
    path = f"/cluster/computers/{MAC.node_id}"
    assert backend.last(path).body == ComputerChange(paused=True)

    backend.say(home(msgspec.structs.replace(MAC, set_aside=True, state="paused")))
    choose(page, MAC.node_id, "resume")

    assert backend.last(path).body == ComputerChange(paused=False)


def test_a_tested_link_is_told_on_its_card(page: MainWindow, backend: ScriptedBackend) -> None:
    backend.say(home(msgspec.structs.replace(MAC, medium=Medium(kind="wifi"))))
    choose(page, MAC.node_id, "test")
    link = page.cluster._computers[MAC.node_id]._link
    assert link.whole_text() == "Testing the link…"

    call = backend.last(f"/cluster/computers/{MAC.node_id}/link").call
    call.done.emit(LinkTest(rtt_ms=0.42, bytes_per_s=1.17e8))

    assert link.whole_text() == "Wi-Fi · 936 Mbit/s · 0.4 ms, just tested"


def test_removing_a_computer_asks_first(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(MAC))
    choose(page, MAC.node_id, "remove")
    question = page.cluster.findChild(Confirmation)
    assert question is not None
    assert "DELETE" not in " ".join(backend.paths())
    qtbot.mouseClick(question.yes, LEFT)

    assert f"DELETE /cluster/computers/{MAC.node_id}" in backend.paths()


def test_menus_and_dialogs_do_not_pile_up(page: MainWindow, backend: ScriptedBackend) -> None:
    backend.say(home(MAC))
    card = page.cluster._computers[MAC.node_id]

    card.menu().aboutToHide.emit()
    page.cluster.open_add_dialog().reject()
    QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)

    assert not card.findChildren(QMenu)
    assert not page.findChildren(AddComputerDialog)


def test_a_model_can_be_unloaded(page: MainWindow, backend: ScriptedBackend, qtbot: QtBot) -> None:
    backend.say(home(model=running_model()))

    qtbot.mouseClick(page.cluster.model.unload, LEFT)

    assert "DELETE /cluster/model" in backend.paths()


def test_the_plan_explains_itself_when_asked(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    plan = msgspec.structs.replace(PLAN, explanation="Desk does it alone.\nIt is the fastest.")
    backend.say(home(model=running_model(plan=plan)))
    card = page.cluster.model
    assert card.line.text() == "Desk does it alone."
    assert not card._explanation.isVisible()

    qtbot.mouseClick(card.why, LEFT)

    assert card._explanation.isVisible()
    assert card._explanation.text() == "It is the fastest."


def test_each_reason_begins_where_it_is_seen(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    reason = "Attic has layers 0 to 33: it is the fastest, and its memory holds no more of them."
    plan = msgspec.structs.replace(PLAN, explanation=f"Together.\n{reason}\n{reason}")
    page.resize(480, 700)
    backend.say(home(model=running_model(plan=plan)))
    qtbot.mouseClick(page.cluster.model.why, LEFT)

    first, second = page.cluster.model._explanation.findChildren(QLabel)
    line = first.fontMetrics().lineSpacing()
    assert first.height() >= 2 * line  # it wraps
    assert second.y() - first.geometry().bottom() > line / 4


def test_the_question_why_ends_where_the_bar_above_it_does(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    plan = msgspec.structs.replace(PLAN, explanation="Desk does it alone.\nIt is the fastest.")
    page.resize(1180, 760)
    backend.say(home(model=running_model(plan=plan)))
    why, bar = page.cluster.model.why, page.cluster.model.bar
    picture = why.grab().toImage()
    ground = picture.pixelColor(picture.width() - 1, 0)
    ends = max(
        x
        for x in range(picture.width())
        for y in range(picture.height())
        if picture.pixelColor(x, y) != ground
    )

    assert why.y() > bar.y()
    assert abs(why.x() + ends - (bar.x() + bar.width())) <= 5  # Qt needs 4 behind words


def test_a_computer_of_which_nothing_is_known_shows_nothing(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home(computer("Mac", "2", devices=(), rtt_ms=None, bytes_per_s=None)))

    assert not page.cluster._computers["2" * 64]._meter.isVisible()


def test_streaming_shows_its_progress(page: MainWindow, backend: ScriptedBackend) -> None:
    transfer = Transfer(node_id=MAC.node_id, name="Mac", sent=1, total=4, eta_s=9)
    model = running_model(state="streaming", progress=0.25, tokens_per_s=None)

    backend.say(home(MAC, model=model, transfers=(transfer,)))

    assert page.cluster.model.line.text() == "Sending layers to Mac · 25 % · 9 s left"
    assert page.cluster.model.meter.fraction == 0.25


def test_a_narrow_page_has_one_column(
    page: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(MAC))
    cards = list(page.cluster._computers.values())
    qtbot.waitUntil(lambda: cards[0].y() == cards[1].y())
    page.setMinimumSize(400, 400)

    page.resize(640, 700)

    qtbot.waitUntil(lambda: cards[0].y() < cards[1].y())


def test_the_layer_bar_divides_its_width_and_keeps_thin_pieces_readable(
    qtbot: QtBot, theme: Theme
) -> None:
    bar = LayerBar(theme)
    qtbot.addWidget(bar)
    bar.resize(600, bar.height())
    sizes = (60, 1, 19)
    edges = [sum(sizes[:n]) for n in range(4)]
    bar.show_segments(tuple(Segment(str(n), edges[n], edges[n + 1], n, "") for n in range(3)))

    widths = [rect.width() for rect in bar.rectangles()]

    assert min(widths) >= 34
    assert sum(widths) + 2 * 2 == pytest.approx(600)
    assert widths[0] > widths[2] > widths[1]
    assert bar.accessibleName() == "Layers: 0 layers 0–59, 1 layers 60, 2 layers 61–79"  # noqa: RUF001


def test_before_the_first_state_the_page_says_so(page: MainWindow) -> None:
    assert page.cluster.subtitle.text() == "Starting…"
    assert not page.cluster.findChildren(ComputerCardView)


def test_a_state_with_nothing_is_survived(page: MainWindow, backend: ScriptedBackend) -> None:
    backend.say(ClusterState(node=home().node))

    assert page.cluster.subtitle.text() == "Starting…"


def test_a_narrow_page_cuts_nothing_off(page: MainWindow, backend: ScriptedBackend) -> None:
    page.setMinimumSize(400, 400)
    page.resize(480, 700)
    asked = study_pc(state="pairing")
    backend.say(
        home(MAC, asked, model=running_model(), pairings=(pairing("confirm"),)),
    )
    QCoreApplication.processEvents()

    scroll = page.cluster.findChild(QScrollArea)
    assert scroll is not None
    content = scroll.widget()
    assert content is not None
    assert content.minimumSizeHint().width() <= scroll.viewport().width()


def test_a_failed_command_is_told_for_a_while_only(
    page: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home())
    backend.report(Problem("That computer is not one of this home."))
    assert page.banner.isVisible()

    page.banner._problem_over.timeout.emit()

    assert not page.banner.isVisible()
