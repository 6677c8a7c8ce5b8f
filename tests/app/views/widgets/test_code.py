"""A block of code while it grows."""

import pytest
from PySide6.QtGui import QGuiApplication
from pytestqt.qtbot import QtBot

from potluck_app.theme import Theme
from potluck_app.viewmodels.blocks import Code
from potluck_app.views.widgets.code import CodeView

pytestmark = pytest.mark.qt

LINE = "TWFuIGlz" * 500


@pytest.fixture
def view(qtbot: QtBot, theme: Theme) -> CodeView:
    view = CodeView(theme)
    qtbot.addWidget(view)
    return view


def grows(view: CodeView, text: str) -> None:
    view.show_code(Code("", text, closed=False))


def test_code_is_shown_as_it_grows(view: CodeView) -> None:
    for text in ("a", "a = 1", "a = 1\nb"):
        grows(view, text)
        assert view.text.toPlainText() == text


def test_the_end_of_a_very_long_line_is_shown_by_and_by(view: CodeView) -> None:
    grows(view, LINE)
    grows(view, LINE + "more")
    assert view.text.toPlainText() == LINE

    view.copy.click()
    assert QGuiApplication.clipboard().text() == LINE + "more"

    grows(view, LINE + "more" * 200)
    assert view.text.toPlainText() == LINE + "more" * 200


@pytest.mark.parametrize("end", ["more\nand another line", "more"])
def test_the_end_of_a_very_long_line_is_there_when_nothing_more_comes(
    view: CodeView, end: str
) -> None:
    grows(view, LINE)
    grows(view, LINE + end)
    view.draw_whole()

    assert view.text.toPlainText() == LINE + end


def test_a_very_long_line_is_whole_once_its_fence_is_closed(view: CodeView) -> None:
    grows(view, LINE)
    view.show_code(Code("", LINE + "more", closed=True))

    assert view.text.toPlainText() == LINE + "more"
