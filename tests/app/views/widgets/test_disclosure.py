"""The arrow of a line that opens: it begins where the text of the page begins."""

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import STRETCH, hbox
from potluck_app.views.widgets.disclosure import Disclosure

pytestmark = pytest.mark.qt


def columns(picture: QImage) -> list[int]:
    """Where something is drawn, from the left, in pixels."""
    ground = picture.pixel(picture.width() - 1, 0)
    heights = range(picture.height())
    return [
        x for x in range(picture.width()) if any(picture.pixel(x, y) != ground for y in heights)
    ]


def test_the_arrow_begins_at_the_edge_and_the_words_do_not_move(qtbot: QtBot, theme: Theme) -> None:
    page = QWidget()
    qtbot.addWidget(page)
    line = Disclosure(theme, "Why so?", "Why it runs so", "why")
    hbox(line, STRETCH, parent=page)
    page.show()
    drawn: dict[bool, list[int]] = {}

    for is_open in (False, True):
        line.show_open(is_open)
        drawn[is_open] = columns(line.grab().toImage())

    assert drawn[False] != drawn[True]
    assert all(found[0] <= 3 for found in drawn.values())
    words = [[x for x in found if x > 14] for found in drawn.values()]
    assert words[0] == words[1]
