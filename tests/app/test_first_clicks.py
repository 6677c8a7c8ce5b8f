"""How many clicks the first start takes, on the main computer and on a helper."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtWidgets import QApplication, QPushButton, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ME, STUDY, ScriptedBackend, home, pairing, study_pc

from potluck.api.values.schema import ClusterState, Node
from potluck_app.theme import Theme
from potluck_app.views.main_window import MainWindow
from potluck_app.views.worker import WorkerWindow

pytestmark = pytest.mark.qt


class Clicks(QObject):
    """Counts the clicks of a person in all windows."""

    def __init__(self, qapp: QApplication) -> None:
        super().__init__()
        self.count = 0
        qapp.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseButtonRelease and isinstance(watched, QPushButton):
            self.count += 1
        return False


@pytest.fixture
def clicks(qapp: QApplication) -> Iterator[Clicks]:
    clicks = Clicks(qapp)
    yield clicks
    qapp.removeEventFilter(clicks)


def click(window: QWidget, name: str, qtbot: QtBot) -> None:
    found = window.findChild(QPushButton, name)
    assert found is not None
    qtbot.mouseClick(found, Qt.MouseButton.LeftButton)


def test_a_main_computer_has_its_helper_after_two_clicks(
    make_window: Callable[..., MainWindow],
    backend: ScriptedBackend,
    clicks: Clicks,
    qtbot: QtBot,
) -> None:
    window = make_window(first_run=True)
    backend.say(home(study_pc()))
    click(window, "first-start", qtbot)  # 1

    assert backend.last("/cluster/pairings").body.target == STUDY  # it is asked by itself
    backend.say(home(study_pc(state="pairing"), pairings=(pairing("confirm"),)))
    click(window, "join-add", qtbot)  # 2

    assert backend.last("/cluster/pairings/p1").body.accept is True
    backend.say(home(study_pc(paired=True, state="ready")))
    assert not window.cluster.looking.isVisible()
    assert window.chat.isVisible()  # the third click sends an example
    assert clicks.count == 2


def test_who_went_to_another_page_stays_there_when_the_first_helper_is_ready(
    make_window: Callable[..., MainWindow], backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window = make_window(first_run=True)
    click(window, "first-start", qtbot)
    window.go(window.models)

    backend.say(home(study_pc(paired=True, state="ready")))

    assert window.models.isVisible()


def test_a_helper_lends_after_two_clicks(
    make_window: Callable[..., MainWindow],
    theme: Theme,
    backend: ScriptedBackend,
    clicks: Clicks,
    qtbot: QtBot,
) -> None:
    shared: list[bool] = []
    window = make_window(first_run=True, on_share=lambda: shared.append(True))
    click(window, "first-share", qtbot)  # 1
    assert shared == [True]  # the program opens the worker window then
    worker = WorkerWindow(
        theme, backend, on_close=lambda: True, on_stop=lambda: None, on_chat=lambda: None
    )
    qtbot.addWidget(worker)
    worker.show()
    lent = ClusterState(node=Node(node_id=ME, name="Study PC", version="0", role="worker"))
    asks = pairing("confirm", role="worker", name="Desk")
    backend.say(msgspec.structs.replace(lent, pairings=(asks,)))
    click(worker, "worker-allow", qtbot)  # 2

    assert backend.last("/cluster/pairings/p1").body.accept is True
    node = msgspec.structs.replace(lent.node, lent_to=("Desk",))
    backend.say(msgspec.structs.replace(lent, node=node))
    assert worker.title.text() == "Helping Desk"
    assert clicks.count == 2
