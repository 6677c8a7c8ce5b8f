"""The mark of what is chosen in a menu."""

import pytest
from PySide6.QtCore import QRect
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from potluck_app.theme import Choice, Theme
from potluck_app.views.widgets.words import Menu

pytestmark = pytest.mark.qt


@pytest.mark.parametrize("look", ["light", "dark"])
def test_what_is_chosen_has_a_mark_of_one_colour_before_its_words(
    qtbot: QtBot, theme: Theme, look: Choice
) -> None:
    theme.set(look)
    parent = QWidget()
    qtbot.addWidget(parent)
    menu = Menu(parent)
    for text, is_chosen in (("Exact", True), ("Creative", False)):
        action = menu.addAction(text)
        action.setCheckable(True)
        action.setChecked(is_chosen)
    menu.ensurePolished()
    menu.resize(menu.sizeHint())
    picture = menu.grab().toImage()
    ground = picture.pixel(picture.width() // 2, 3)

    def colours(place: QRect) -> set[int]:
        left = range(place.left() + 8, place.left() + 24)
        rows = range(place.top() + 2, place.bottom() - 2)
        return {picture.pixel(x, y) for x in left for y in rows} - {ground}

    chosen, other = (colours(menu.actionGeometry(action)) for action in menu.actions())
    assert menu.palette().text().color().rgb() in chosen
    assert other == set()
