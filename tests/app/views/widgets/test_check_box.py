"""The check box: seen in both themes, and whether it is on."""

import pytest
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from potluck_app.theme import Choice, Theme
from potluck_app.views.widgets.check_box import CheckBox

pytestmark = pytest.mark.qt


def contrast(one: QColor, other: QColor) -> float:
    """https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(color: QColor) -> float:
        parts = (color.redF(), color.greenF(), color.blueF())
        red, green, blue = (
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_its_text_goes_on_in_the_next_line(theme: Theme, qtbot: QtBot) -> None:
    box = CheckBox("Start with the computer and stay in the tray", "start")
    qtbot.addWidget(box)
    box.show()
    whole = box.sizeHint()

    box.resize(whole.width() // 2, 99)

    assert box.minimumSizeHint().width() < whole.width() // 2
    assert box.heightForWidth(whole.width()) == whole.height()
    assert box.heightForWidth(whole.width() // 2) > whole.height()
    assert box.text().count("\n") >= 1
    assert box.accessibleName() == "Start with the computer and stay in the tray"
    box.resize(whole)
    assert "\n" not in box.text()


@pytest.mark.parametrize("look", ["light", "dark"])
def test_its_frame_is_seen_on_the_window(qapp: QApplication, qtbot: QtBot, look: Choice) -> None:
    theme = Theme(qapp, look)
    box = CheckBox("Start with the computer", "start")
    qtbot.addWidget(box)
    box.show()
    image = box.grab().toImage()
    middle = image.height() // 2

    row = [image.pixelColor(x, middle) for x in range(20)]

    assert max(contrast(pixel, QColor(theme.tokens.bg)) for pixel in row) >= 3
    assert not any(pixel == QColor(theme.tokens.accent) for pixel in row)

    box.setChecked(True)
    image = box.grab().toImage()
    colors = {image.pixelColor(x, y).name() for x in range(20) for y in range(image.height())}
    assert QColor(theme.tokens.accent).name() in colors
