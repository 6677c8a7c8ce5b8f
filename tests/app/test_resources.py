"""The icons."""

import re

import pytest
from PySide6.QtGui import QColor, QIcon
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication

from potluck_app import resources

pytestmark = pytest.mark.qt

NAMES = sorted(path.stem for path in resources.asset("icons").glob("*.svg"))
OWN_COLOURS = ("potluck",)


@pytest.mark.parametrize("name", NAMES)
def test_every_icon_is_drawn(qapp: QApplication, name: str) -> None:
    assert QSvgRenderer(str(resources.asset("icons", f"{name}.svg"))).isValid()
    image = resources.pixmap(name, "#336699", 24, 2.0).toImage()

    colors = {
        image.pixelColor(x, y).name()
        for x in range(48)
        for y in range(48)
        if image.pixelColor(x, y).alpha() > 250
    }

    assert colors == {"#336699"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN_COLOURS])
def test_every_icon_is_of_the_set(name: str) -> None:
    text = resources.asset("icons", f"{name}.svg").read_text()

    assert 'viewBox="0 0 24 24"' in text
    assert set(re.findall(r'stroke-width="([^"]+)"', text)) <= {"1.75"}
    assert set(re.findall(r"#[0-9a-fA-F]{3,6}", text)) == {"#000"}


def test_an_icon_is_sharp_on_screens_of_both_densities(qapp: QApplication) -> None:
    icon = resources.icon("chat", "#000000", 20, disabled="#888888")

    assert resources.pixmap("chat", "#000000", 20, 2.0).width() == 40
    grey = icon.pixmap(20, QIcon.Mode.Disabled).toImage()
    assert any(grey.pixelColor(x, y) == QColor("#888888") for x in range(20) for y in range(20))


def test_the_mark_is_there_in_every_size(qapp: QApplication) -> None:
    assert {size.width() for size in resources.app_icon().availableSizes()} >= {16, 32, 256}
