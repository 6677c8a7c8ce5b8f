"""Texts that are longer, wider or written the other way round than most: nothing of them is cut."""

import msgspec
import pytest
from chat_page import STATS, ask, last, own
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QLabel, QTextEdit
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck_app.streams import ReplyEnd
from potluck_app.theme import Theme
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.plain import PlainView
from potluck_app.views.widgets.prose import ProseView

pytestmark = pytest.mark.qt

WORD = "https://example.org/" + "x" * 400


def is_whole(view: QTextEdit) -> bool:
    """Return whether every line of a text is inside its widget."""
    document, room = view.document(), view.viewport().rect()
    lines = [
        block.layout().lineAt(number).naturalTextWidth()
        for block in map(document.findBlockByNumber, range(document.blockCount()))
        for number in range(block.layout().lineCount())
    ]
    return max(lines) <= room.width() and document.size().height() <= room.height() + 1


def is_told_whole(text: QLabel) -> bool:
    return text.heightForWidth(text.width()) <= text.height()


@pytest.mark.parametrize("width", [480, 1180])
def test_a_word_that_is_longer_than_a_line_goes_on_in_the_next(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot, width: int
) -> None:
    window.resize(width, 720)
    backend.say(home(model=running_model()))
    ask(window, backend, f"See {WORD}", f"<think>{WORD}</think>\n\nYes: {WORD}")
    reply = last(window)
    reply.thinking.unfold()
    answer = reply.findChildren(ProseView)[0]
    texts = (own(window).text, reply.thinking.text, answer)

    qtbot.waitUntil(lambda: [is_whole(text) for text in texts] == [True] * 3)

    assert own(window).text.height() > 2 * own(window).text.fontMetrics().lineSpacing()
    assert own(window).text.text() == f"See {WORD}"  # what is copied has nothing added


def test_an_error_with_a_long_path_is_told_whole_and_its_button_below_it(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    window.resize(480, 720)
    window.chat.composer.sent.emit("How?", ())
    backend.replies[-1].finished.emit(
        ReplyEnd(error=f"The model /models/{WORD} is damaged.", stats=STATS)
    )

    failure = last(window).failure

    qtbot.waitUntil(lambda: failure.text.height() > 4 * failure.text.fontMetrics().lineSpacing())
    assert failure.text.heightForWidth(failure.text.width()) <= failure.text.height()
    retry = failure.retry.mapTo(failure, failure.retry.rect().topLeft())
    assert retry.y() >= failure.text.geometry().bottom()


def test_a_text_that_grows_keeps_what_is_there(qtbot: QtBot, theme: Theme) -> None:
    view = PlainView(theme, "Thoughts")
    qtbot.addWidget(view)
    view.show_text("One")
    view.show_text("One, two\nthree")
    assert view.toPlainText() == "One, two\nthree"

    view.show_text("Other")
    assert view.toPlainText() == "Other"


def test_the_figures_of_a_reply_are_below_its_actions_where_they_would_be_cut(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home(model=running_model()))
    window.chat.composer.sent.emit("How?", ())
    backend.replies[-1].text.emit("so")
    figures = msgspec.structs.replace(STATS, loading_s=125)
    backend.replies[-1].finished.emit(ReplyEnd(stats=figures, cut=True))
    reply = last(window)
    assert reply.stats.y() < reply.copy.geometry().bottom()

    window.resize(480, 720)

    qtbot.waitUntil(lambda: reply.stats.y() >= reply.copy.geometry().bottom())
    assert reply.stats.text().startswith("Cut at the limit of tokens · ")
    qtbot.waitUntil(lambda: is_told_whole(reply.stats))
    assert reply.stats.height() >= 2 * reply.stats.fontMetrics().height()


def test_a_quote_that_is_read_from_the_right_has_its_bar_there(qtbot: QtBot, theme: Theme) -> None:
    view = ProseView(theme)
    qtbot.addWidget(view)
    view.resize(300, 200)
    view.show_markdown("> שלום עולם")
    view.show()
    image = view.grab().toImage()

    row = [QColor(image.pixel(x, 8)).name().upper() for x in range(300)]

    assert theme.tokens.border_strong not in row[:150]
    assert row[298] == theme.tokens.border_strong


@pytest.mark.parametrize("name", ["cluster", "models", "settings"])
def test_on_a_wide_screen_a_page_is_in_the_middle_and_no_wider_than_one_reads(
    window: MainWindow, backend: ScriptedBackend, name: str
) -> None:
    window.resize(1900, 1000)
    backend.say(home(model=running_model()))
    page = getattr(window, name)
    window.go(page)

    card = {"cluster": window.cluster.model, "models": window.models.add.parentWidget()}.get(
        name, window.settings.about
    )
    left = card.mapTo(page, card.rect().topLeft()).x()
    right = page.width() - card.mapTo(page, card.rect().topRight()).x()

    assert card.width() <= 1280
    assert abs(left - right) < 24


def test_the_hardware_of_a_computer_is_told_whole(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    window.resize(480, 720)
    backend.say(home())
    window.go(window.cluster)
    (card,) = window.cluster._computers.values()

    hardware = card._hardware

    assert hardware.wordWrap()
    assert hardware.heightForWidth(hardware.width()) <= hardware.height() + 1  # which is rounded


def test_an_example_has_all_its_words_in_a_narrow_window(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(home())
    example = window.chat._examples[2]
    example.setText("Es wird kein einziger Computer in diesem Netz gefunden. Was kann ich da tun?")
    window.resize(480, 720)
    words = example._words

    qtbot.waitUntil(lambda: words.heightForWidth(words.width()) <= words.height())

    assert window.chat.examples.width() <= window.chat.width()
    qtbot.mouseClick(example, Qt.MouseButton.LeftButton)
    assert backend.chats[-1][0].text == "No computers are found. What can I do?"
