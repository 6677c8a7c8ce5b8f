"""The small widgets of every page: where they are, and what is around them."""

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck_app.theme import Theme
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.controls import IconButton, fill_page, label

pytestmark = pytest.mark.qt


def left_of(widget: QWidget, window: QWidget) -> int:
    return widget.mapTo(window, QPoint(0, 0)).x()


@pytest.mark.parametrize("width", [None, 400])
@pytest.mark.parametrize("room", [900, 500])
def test_what_is_on_a_page_stays_where_it_is_when_it_begins_to_scroll(
    qtbot: QtBot, width: int | None, room: int
) -> None:
    page, line, long = QWidget(), label("A line"), QLabel()
    fill_page(page, "Page", line, long, width=width)
    qtbot.addWidget(page)
    page.resize(room, 300)
    page.show()
    before = left_of(line, page), line.width()

    long.setFixedHeight(2000)

    layout = page.layout()
    assert layout is not None
    layout.activate()
    assert (left_of(line, page), line.width()) == before


def test_every_page_has_its_title_at_the_same_height(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    backend.say(home())
    heights: set[int] = set()
    for page in (window.cluster, window.models, window.settings):
        window.go(page)
        titles = [each for each in page.findChildren(QLabel) if each.property("kind") == "title"]
        heights.add(titles[0].mapTo(window, titles[0].rect().center()).y())

    assert len(heights) == 1


def test_a_flat_button_has_the_same_room_on_both_sides(qtbot: QtBot, theme: Theme) -> None:
    button = IconButton(theme, "copy", "Copy", "copy", text="Copy")
    qtbot.addWidget(button)
    button.resize(button.sizeHint())
    button.show()

    image = button.grab(QRect(QPoint(0, 0), button.size())).toImage()
    image = image.convertToFormat(QImage.Format.Format_RGB32)
    drawn = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), -1)
    columns = np.flatnonzero((drawn != drawn[0, 0]).any(axis=0))
    assert abs(columns[0] - (button.width() - 1 - columns[-1])) <= 4
