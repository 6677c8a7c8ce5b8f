"""Pictures in the window: made small, sent beside the text, shown as a chip."""

import base64
from typing import Any

import pytest
from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QMimeData, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend

from potluck_app.backend import _content
from potluck_app.chats.values import Attachment, Message
from potluck_app.views.main_window import MainWindow
from potluck_app.views.pictures import small_picture, thumbnail

pytestmark = pytest.mark.qt


def saved(width: int, height: int, form: str = "PNG", *, alpha: bool = False) -> bytes:
    kind = QImage.Format.Format_ARGB32 if alpha else QImage.Format.Format_RGB32
    image = QImage(width, height, kind)
    image.fill(QColor(200, 30, 60, 128 if alpha else 255))
    data = QByteArray()
    buffer = QBuffer(data)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    write: Any = image.save
    assert write(buffer, form)
    return bytes(data.data())


def size_of(data: bytes | None) -> tuple[int, int]:
    image = QImage.fromData(QByteArray(data or b""))
    return image.width(), image.height()


def test_a_large_picture_is_made_small_and_a_small_one_is_sent_as_it_is(qapp: QApplication) -> None:
    small = saved(300, 200)
    assert small_picture(small) == small
    assert size_of(small_picture(saved(4000, 1000, "JPEG"))) == (1600, 400)
    made = small_picture(saved(100, 3200, alpha=True))
    assert made is not None
    assert made.startswith(b"\x89PNG")  # which keeps what is transparent
    bitmap = small_picture(saved(20, 10, "BMP"))
    assert bitmap is not None
    assert bitmap.startswith(b"\xff\xd8")  # which every model's processor reads


def test_what_is_no_picture_is_none(qapp: QApplication) -> None:
    assert small_picture(b"") is None
    assert small_picture(b"no picture") is None
    assert small_picture(saved(300, 200)[:20]) is None
    webp = b"RIFF\0\0\0\0WEBP not one"
    assert small_picture(webp) in (None, webp)  # as this Qt reads it or not


def test_a_thumbnail_is_as_high_as_its_chip(qapp: QApplication) -> None:
    picture = base64.b64encode(saved(300, 200)).decode()
    assert thumbnail(picture, 48).height() == 48
    assert thumbnail("AAAA", 48).isNull()


def test_a_message_with_a_picture_is_what_the_node_takes() -> None:
    message = Message(
        role="user", text="What?", attachments=(Attachment(name="a", picture="QQ=="),)
    )
    assert _content(message) == [
        {"type": "image_url", "image_url": {"url": "data:image;base64,QQ=="}},
        {"type": "text", "text": "What?"},
    ]


def test_a_picture_of_the_clipboard_is_attached_and_sent(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    data = QMimeData()
    image = QImage(30, 20, QImage.Format.Format_RGB32)
    image.fill(QColor("red"))
    data.setImageData(image)
    composer = window.chat.composer

    assert composer.text.canInsertFromMimeData(data)
    composer.text.insertFromMimeData(data)

    (attached,) = composer.draft().attachments
    assert size_of(base64.b64decode(attached.picture)) == (30, 20)
    assert composer.chips.isVisible()
    qtbot.mouseClick(composer.button, Qt.MouseButton.LeftButton)
    assert [m.attachments for m in backend.chats[-1]] == [(attached,)]
