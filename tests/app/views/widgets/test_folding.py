"""A row that folds: what has no room beside a text goes below it, and its height is right at each width."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import ElidedLabel, label
from potluck_app.views.widgets.folding import Folding, Headed

pytestmark = pytest.mark.qt

Show = Callable[..., tuple[QWidget, Folding, QPushButton]]


@pytest.fixture
def show(qtbot: QtBot) -> Show:
    """A row in a window, with a text, a button beside it, and another button at its end."""

    def make(text: QWidget, needs: int, width: int, *, at_end: bool = False) -> object:
        window, beside = QWidget(), QPushButton("Beside")
        row = Folding(text, beside, lambda: needs, tail=QPushButton("…"), at_end=at_end)
        vbox(row, (None, 1), parent=window)
        qtbot.addWidget(window)
        window.resize(width, 200)
        window.show()
        return window, row, beside

    return make  # type: ignore[return-value]


def test_what_has_room_stands_beside_the_text_and_else_below_the_row(show: Show) -> None:
    text = label("A name")
    window, row, beside = show(text, needs=200, width=600)
    assert not row.is_folded(600)
    assert text.geometry().right() < beside.x() < window.width()
    assert abs(text.geometry().center().y() - beside.geometry().center().y()) <= 1

    window.resize(320, 200)

    assert row.is_folded(320)
    assert beside.y() > text.geometry().bottom()
    assert beside.x() == 0


def test_what_is_below_may_stand_at_the_end_where_a_person_looks_for_it(show: Show) -> None:
    window, _row, beside = show(label("A name"), needs=900, width=320, at_end=True)

    assert beside.geometry().right() == window.width() - 1


@pytest.mark.parametrize("width", range(200, 700, 50))
def test_the_height_is_right_before_it_is_shown_at_that_width(show: Show, width: int) -> None:
    text = label("Some words that go on in the next line. " * 4, wrap=True)
    window, row, beside = show(text, needs=300, width=800)
    expected = row.heightForWidth(width)

    window.resize(width, 600)

    shown = [each.geometry() for each in (text, beside)]
    assert max(place.bottom() for place in shown) + 1 <= expected
    assert text.heightForWidth(text.width()) <= text.height()
    assert row.geometry().height() == expected


def test_a_name_that_would_be_cut_gets_the_row_for_itself(show: Show) -> None:
    name = ElidedLabel("Mamba-Codestral-7B-Instruct")
    window, row, beside = show(name, needs=name.needed_width(), width=300)

    assert beside.y() > name.geometry().bottom()
    assert QLabel.text(name) == "Mamba-Codestral-7B-Instruct"
    window.resize(900, 200)
    assert not row.is_folded(900)
    assert beside.y() < name.geometry().bottom()


def test_without_what_stands_beside_it_the_text_has_the_whole_row(show: Show) -> None:
    text = label("A name")
    window, row, beside = show(text, needs=10_000, width=400)

    beside.hide()
    layout = window.layout()
    assert layout is not None
    layout.activate()

    assert not row.is_folded(400)
    assert text.width() > 300


@pytest.fixture
def headed(qtbot: QtBot) -> Callable[[str, int, int], tuple[QWidget, Headed, QLabel, QLabel]]:
    """A state with facts beside it, in a window so wide; the facts want so many pixels."""

    def make(facts: str, needs: int, width: int) -> tuple[QWidget, Headed, QLabel, QLabel]:
        window, state, line = QWidget(), QPushButton("Fits"), label(facts, wrap=True)
        row = Headed(state, line, lambda: needs)
        vbox(row, (None, 1), parent=window)
        qtbot.addWidget(window)
        window.resize(width, 300)
        window.show()
        return window, row, state, line  # type: ignore[return-value]

    return make


def test_facts_stand_beside_their_state_and_below_it_where_they_would_be_narrow(headed) -> None:
    window, row, state, facts = headed("Some facts", 200, 500)
    assert not row.is_folded(500)
    assert facts.x() > state.geometry().right()
    middle = (facts.y() + facts.height() / 2) - (state.y() + state.height() / 2)
    assert abs(middle) <= 1  # one line is in the middle of the state

    window.resize(240, 300)

    assert row.is_folded(240)
    assert facts.y() > state.geometry().bottom()
    assert (facts.x(), facts.width()) == (0, window.width())


@pytest.mark.parametrize("width", range(160, 600, 60))
def test_a_state_and_its_facts_have_the_right_height_at_each_width(headed, width: int) -> None:
    window, row, state, facts = headed("Facts that go on in the next line. " * 4, 260, 800)
    expected = row.heightForWidth(width)

    window.resize(width, 600)

    assert max(state.geometry().bottom(), facts.geometry().bottom()) + 1 == expected
    assert facts.heightForWidth(facts.width()) <= facts.height()


def test_facts_without_a_state_have_the_whole_row(headed) -> None:
    window, row, state, facts = headed("Some facts", 200, 300)

    state.hide()
    layout = window.layout()
    assert layout is not None
    layout.activate()

    assert not row.is_folded(300)
    assert (facts.x(), facts.y(), facts.width()) == (0, 0, window.width())
    assert row.expandingDirections() == Qt.Orientation.Horizontal
