"""Any screen from 480 pixels on: nothing is cut off, and nothing lies outside."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
from chat_page import pages_of
from fake_backend import computer
from PySide6.QtCore import QCoreApplication, QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QApplication, QScrollArea, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, pairing, running_model, study_pc

from potluck import __version__
from potluck.api.values.schema import Device, Listener
from potluck.api.values.update import Update
from potluck_app import language
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.views.main_window import MINIMUM, MainWindow
from potluck_app.views.widgets import screens
from potluck_app.views.widgets.controls import ElidedLabel
from potluck_app.views.widgets.dialogs import Confirmation, Dialog
from potluck_app.views.worker import WorkerWindow

pytestmark = pytest.mark.qt

SMALL = QSize(911 - 16, 512 - 40 - 40)  # 1366 x 768 at 150 %, with a task bar and a title bar
LEFT = Qt.MouseButton.LeftButton
Make = Callable[..., MainWindow]
GPU = Device(
    kind="cuda", name="NVIDIA GeForce RTX 4070", memory_total=12 * 10**9, memory_free=10**10
)


@pytest.fixture
def small_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "room", lambda _widget: SMALL)


@pytest.fixture
def narrow(make_window: Make, backend: ScriptedBackend, qtbot: QtBot) -> MainWindow:
    """A window of the least size, in which much is shown."""
    window = make_window()
    gaming = computer("Gaming PC in the cellar", "2", devices=(GPU,), bytes_per_s=117e6, rtt_ms=0.3)
    backend.say(home(gaming, study_pc(), model=running_model(), pairings=(pairing("confirm"),)))
    window.resize(MINIMUM)
    qtbot.waitUntil(lambda: window.size() == MINIMUM)
    return window


def inside(widget: QWidget, window: QWidget) -> bool:
    place = QRect(widget.mapTo(window, QPoint(0, 0)), widget.size())
    return window.rect().contains(place)


def too_wide(page: QWidget) -> Iterator[str]:
    """The names of what scrolls up and down in a page, and is wider than its place."""
    for area in page.findChildren(QScrollArea):
        inner = area.widget()
        if area.isVisible() and inner is not None and inner.width() > area.viewport().width():
            yield f"{area.accessibleName()}: {inner.width()} of {area.viewport().width()}"


def test_every_page_has_room_in_the_smallest_window(narrow: MainWindow, qtbot: QtBot) -> None:
    for page in pages_of(narrow):
        narrow.go(page)
        qtbot.wait(1)

        assert list(too_wide(page)) == []
        least = page.minimumSizeHint()
        assert least.width() <= page.width(), page.objectName()
        assert least.height() <= SMALL.height(), page.objectName()


@pytest.fixture
def german(qapp: QApplication) -> Iterator[None]:
    translators = language.use(qapp, "de")
    yield
    for translator in translators:
        qapp.removeTranslator(translator)


@pytest.mark.usefixtures("german")
def test_the_buttons_about_a_new_version_have_room_in_german(
    narrow: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    failed = Update(
        phase="offered", message="Damaged.", version="2.0.0", failed=True, before="1.0.0"
    )
    node = msgspec.structs.replace(home().node, version=__version__)
    backend.say(home(update=failed, node=node))
    narrow.go(narrow.settings)
    card = narrow.settings.update_card
    qtbot.waitUntil(card.back.isVisible)

    assert list(too_wide(narrow.settings)) == []
    parts = (card.look, card.install, card.back, card.allowed)
    assert all(card.rect().contains(part.mapTo(card, part.rect().bottomRight())) for part in parts)
    assert "\n" in card.allowed.text()
    assert card.allowed.height() >= card.allowed.heightForWidth(card.allowed.width())


def test_the_first_page_has_room_in_the_smallest_window(make_window: Make, qtbot: QtBot) -> None:
    window = make_window(first_run=True)

    window.resize(MINIMUM)

    qtbot.waitUntil(lambda: window.first_run.width() == MINIMUM.width())
    qtbot.waitUntil(lambda: list(too_wide(window.first_run)) == [])
    window.resize(1180, 760)
    qtbot.waitUntil(lambda: len({card.y() for card in window.first_run._roles}) == 1)


def test_the_link_of_a_graphics_computer_is_told_whole(narrow: MainWindow, qtbot: QtBot) -> None:
    narrow.go(narrow.cluster)
    card = narrow.cluster._computers["2" * 64]
    qtbot.waitUntil(card._link.isVisible)

    assert isinstance(card._link, ElidedLabel)
    assert card._link.text() == card._link.whole_text() == "936 Mbit/s · 0.3 ms"


def test_the_address_for_programs_is_told_whole(
    narrow: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    narrow.go(narrow.settings)
    backend.say(home(listeners=(Listener(host="127.0.0.1", port=8000),)))
    url = narrow.settings.programs.url
    qtbot.waitUntil(url.isVisible)

    assert url.cursorPosition() == 0
    assert url.fontMetrics().horizontalAdvance(url.text()) < url.width() - 20


def test_the_state_of_a_model_that_failed_is_where_its_name_begins(
    narrow: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    narrow.go(narrow.cluster)
    backend.say(home(model=running_model(state="failed", tokens_per_s=None, plan=None)))
    card = narrow.cluster.model

    qtbot.waitUntil(lambda: card.pill.text() == "Failed" and card.pill.isVisible())
    qtbot.waitUntil(lambda: card.pill.mapTo(card, QPoint()).x() == card.name.x())


def test_a_size_from_a_larger_screen_is_cut_to_this_one(
    make_window: Make, preferences: PreferencesFile
) -> None:
    preferences.change(width=5000, height=3000)

    window = make_window()

    assert window.size() == screens.room(window)


@pytest.mark.usefixtures("small_screen")
def test_on_a_small_screen_the_composer_is_in_it(make_window: Make, qtbot: QtBot) -> None:
    window = make_window()

    assert window.height() == window.minimumHeight() == SMALL.height()
    qtbot.waitUntil(lambda: inside(window.chat.composer, window))
    assert inside(window.rail_buttons["settings"], window)


@pytest.mark.usefixtures("small_screen")
def test_a_dialog_scrolls_on_a_small_screen_and_its_buttons_stay(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window = make_window()
    backend.say(home())
    adding = window.cluster.open_add_dialog()
    adding._token_row.show()
    adding._say("Nothing answers there. " * 12, is_error=True)
    long = Confirmation(window, title="Sure?", text="It cannot be undone. " * 200, action="Delete")
    long.show()

    for dialog in (adding, long):
        assert isinstance(dialog, Dialog)
        assert dialog.width() <= SMALL.width()
        assert dialog.height() <= SMALL.height()
    qtbot.waitUntil(lambda: inside(long.yes, long))
    assert long.height() == SMALL.height()
    area = long.findChildren(QScrollArea)[0]
    qtbot.keyClick(area, Qt.Key.Key_PageDown)
    assert area.verticalScrollBar().value() > 0
    assert area.focusPolicy() == Qt.FocusPolicy.TabFocus
    long.close()


def test_the_worker_window_scrolls_on_a_small_screen(
    backend: ScriptedBackend, theme: Theme, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "room", lambda _widget: QSize(640, 360))
    worker = WorkerWindow(
        theme, backend, on_close=lambda: True, on_stop=lambda: None, on_chat=lambda: None
    )
    qtbot.addWidget(worker)
    backend.say(home(pairings=(pairing("confirm", role="worker"),)))

    worker.show()

    assert worker.height() == 360
    area = worker.findChildren(QScrollArea)[0]
    qtbot.waitUntil(lambda: area.verticalScrollBar().maximum() > 0)


def test_a_short_dialog_is_as_high_as_its_text(make_window: Make, qtbot: QtBot) -> None:
    short = Confirmation(make_window(), title="Sure?", text="It is gone then.", action="Delete")

    short.show()

    assert short.height() < 200
    assert list(too_wide(short)) == []
    areas = short.findChildren(QScrollArea)
    assert all(area.verticalScrollBar().maximum() == 0 for area in areas)
    assert all(area.focusPolicy() == Qt.FocusPolicy.NoFocus for area in areas)


def test_in_a_narrow_window_the_list_lies_over_the_chat(narrow: MainWindow, qtbot: QtBot) -> None:
    chat = narrow.chat
    narrow.go(chat)
    before = chat._main.geometry()

    qtbot.mouseClick(chat.show_list, LEFT)

    assert chat.sidebar.isVisible()
    assert chat._main.geometry() == before
    qtbot.keyClick(narrow, Qt.Key.Key_Escape)
    assert not chat.sidebar.isVisible()
    qtbot.mouseClick(chat.show_list, LEFT)
    qtbot.mouseClick(chat._list._shade, LEFT, pos=chat.rect().topRight() - QPoint(5, -5))
    assert not chat.sidebar.isVisible()
    assert not chat._list._shade.isVisible()


def test_in_a_narrow_window_the_options_lie_over_the_chat(narrow: MainWindow, qtbot: QtBot) -> None:
    chat = narrow.chat
    narrow.go(chat)

    qtbot.keyClick(narrow, Qt.Key.Key_I, Qt.KeyboardModifier.ControlModifier)

    assert chat.drawer.isVisible()
    assert chat.drawer.geometry().right() == chat.rect().right()
    qtbot.keyClick(narrow, Qt.Key.Key_Escape)
    assert not chat.drawer.isVisible()
    narrow.resize(1180, 760)
    qtbot.waitUntil(chat.sidebar.isVisible)
    qtbot.waitUntil(lambda: chat.sidebar.geometry().right() < chat._main.geometry().left())


def test_with_larger_text_windows_and_dialogs_are_larger(
    make_window: Make, theme: Theme, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window = make_window()
    window.resize(MINIMUM)
    worker = WorkerWindow(
        theme, backend, on_close=lambda: True, on_stop=lambda: None, on_chat=lambda: None
    )
    qtbot.addWidget(worker)

    theme.set_text_size(20)

    grown = QSize(round(MINIMUM.width() * 20 / 14), round(MINIMUM.height() * 20 / 14))
    assert window.size() == window.minimumSize() == grown
    assert worker.minimumWidth() == round(380 * 20 / 14)
    assert window.chat.sidebar.minimumWidth() == round(250 * 20 / 14)
    dialog = Confirmation(window, title="Delete it?", text="It is gone.", action="Delete")
    assert dialog.width() == round(400 * 20 / 14)

    theme.set_text_size(14)
    assert window.minimumSize() == MINIMUM


def test_a_window_that_is_gone_does_not_follow_the_text(
    theme: Theme, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    worker = WorkerWindow(
        theme, backend, on_close=lambda: True, on_stop=lambda: None, on_chat=lambda: None
    )
    worker.deleteLater()
    QCoreApplication.sendPostedEvents(worker, QEvent.Type.DeferredDelete.value)

    theme.set_text_size(20)  # no exception comes out of a slot

    theme.set_text_size(14)


def test_the_only_computer_is_as_wide_as_the_card_of_the_model(
    make_window: Make, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    page = make_window()
    page.resize(1180, 760)
    page.go(page.cluster)

    def widths() -> list[int]:
        return [card.width() for card in page.cluster._computers.values()]

    backend.say(home())
    whole = page.cluster.model
    qtbot.waitUntil(lambda: widths() == [whole.width()])

    backend.say(home(computer("Mac", "2")))

    qtbot.waitUntil(lambda: len(widths()) == 2 and max(widths()) < whole.width() / 2)


def test_the_examples_are_equally_wide_with_larger_text(
    make_window: Make, backend: ScriptedBackend, theme: Theme, qtbot: QtBot
) -> None:
    theme.set_text_size(20)
    window = make_window()
    window.resize(1180, 800)
    backend.say(home())
    examples = window.chat._examples

    qtbot.waitUntil(examples[0].isVisible)
    qtbot.waitUntil(lambda: len({example.width() for example in examples}) == 1)
