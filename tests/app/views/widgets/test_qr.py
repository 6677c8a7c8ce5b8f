"""A text as a QR code."""

import pytest
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from potluck_app.views.widgets.qr import QrCode, qr_image

pytestmark = pytest.mark.qt

COMMAND = "potluck worker --join POT-" + "7kq2m9xd" * 20


def is_dark(image: QImage, x: int, y: int) -> bool:
    return image.pixelColor(x, y).lightness() < 128


def test_it_has_the_corners_and_the_margin_that_readers_look_for() -> None:
    image = qr_image(COMMAND)
    side = image.width()
    assert image.height() == side

    border = [*((x, y) for x in range(side) for y in (0, 3)), *((3, y) for y in range(side))]
    assert not any(is_dark(image, x, y) for x, y in border)
    for left, top in ((4, 4), (side - 11, 4), (4, side - 11)):  # three squares of seven modules
        ring = [is_dark(image, left + i, top) for i in range(7)]
        inner = [is_dark(image, left + i, top + 1) for i in range(7)]
        assert (ring, inner) == ([True] * 7, [True, *[False] * 5, True])


def test_another_text_is_another_code() -> None:
    assert qr_image(COMMAND) != qr_image(COMMAND[:-1] + "x")


def test_it_is_shown_with_whole_pixels_for_each_module(qtbot: QtBot) -> None:
    code = QrCode("QR code of the command")
    qtbot.addWidget(code)
    assert code.isHidden()

    code.show_text(COMMAND)

    assert code.isVisible()
    assert code.width() == 3 * qr_image(COMMAND).width()
    assert code.pixmap().width() % qr_image(COMMAND).width() == 0
