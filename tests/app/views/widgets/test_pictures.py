"""Pictures in the window: made small, sent beside the text, shown as a chip."""

import base64
from pathlib import Path
from typing import Any

import pytest
from chat_page import own
from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QMimeData, QPoint, Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck.api.values.schema import ClusterState, ServedModel
from potluck_app.backend import _content
from potluck_app.chats.values import Attachment, Draft, Message
from potluck_app.streams import ReplyEnd
from potluck_app.viewmodels.answering import sees
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.chips import Thumbnail
from potluck_app.views.widgets.enlarged import Enlarged
from potluck_app.views.widgets.pictures import file_name, small_picture, thumbnail

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


PHOTO = Attachment(name="photo", picture=base64.b64encode(saved(900, 600, "JPEG")).decode())


def opened(window: MainWindow, qtbot: QtBot, *pictures: Attachment) -> list[Thumbnail]:
    """Send a message with these pictures; their thumbnails."""
    window.chat.composer.sent.emit("What is it?", pictures)
    qtbot.waitUntil(lambda: len(own(window).chips.findChildren(Thumbnail)) == len(pictures))
    return own(window).chips.findChildren(Thumbnail)


def enlarged(window: MainWindow) -> Enlarged | None:
    return next((each for each in window.findChildren(Enlarged) if each.isVisible()), None)


def test_a_click_on_a_picture_enlarges_it_and_a_click_closes_it(
    window: MainWindow, qtbot: QtBot
) -> None:
    _, second = opened(window, qtbot, PHOTO, PHOTO)

    qtbot.mouseClick(second, Qt.MouseButton.LeftButton)

    shown = enlarged(window)
    assert shown is not None
    assert shown.accessibleName() == "Enlarged picture: photo"
    qtbot.mouseClick(shown, Qt.MouseButton.LeftButton)
    assert enlarged(window) is None


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Space])
def test_keys_enlarge_a_picture_and_esc_closes_it_and_stops_no_reply(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot, key: Qt.Key
) -> None:
    (thumb,) = opened(window, qtbot, PHOTO)
    thumb.setFocus()

    qtbot.keyClick(thumb, key)
    shown = enlarged(window)
    assert shown is not None
    assert shown.hasFocus()
    qtbot.keyClick(shown, Qt.Key.Key_Tab)
    assert shown.close_button.hasFocus()
    qtbot.keyClick(shown.close_button, Qt.Key.Key_Escape)

    assert enlarged(window) is None
    assert thumb.hasFocus()
    assert window.chat.composer.button.text() == "Stop"


@pytest.mark.parametrize("width", [480, 1180])
def test_an_enlarged_picture_fits_the_window_and_is_no_larger_than_it_is(
    window: MainWindow, qtbot: QtBot, width: int
) -> None:
    window.resize(width, 720)
    tiny = Attachment(name="dot", picture=base64.b64encode(saved(30, 20)).decode())
    large, small = (thumb.enlarge() for thumb in opened(window, qtbot, PHOTO, tiny))

    assert large.rect().contains(large.place())
    assert large.place().width() == min(900, width - 32)
    assert small.place().size().toTuple() == (30, 20)
    window.resize(700, 600)
    assert small.size() == window.size()


def test_a_picture_is_closed_when_the_focus_goes_elsewhere(
    window: MainWindow, qtbot: QtBot
) -> None:
    (thumb,) = opened(window, qtbot, PHOTO)
    thumb.enlarge()

    window.go(window.settings)

    assert enlarged(window) is None


def test_an_enlarged_picture_is_saved_with_the_ending_of_its_format(
    window: MainWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    (thumb,) = opened(window, qtbot, PHOTO)
    shown = thumb.enlarge()
    assert [action.text() for action in shown.menu().actions()] == ["Copy", "Save as…"]
    path = tmp_path / file_name(PHOTO)
    assert path.name == "photo.jpg"

    shown.save(path)

    qtbot.waitUntil(lambda: shown.caption.text() == f"“photo” was saved as {path}.")
    assert path.read_bytes() == base64.b64decode(PHOTO.picture)


def test_a_damaged_picture_is_shown_as_a_file(window: MainWindow) -> None:
    broken = Attachment(name="broken", picture="é")

    window.chat.composer.show_draft(Draft(attachments=(broken,)))

    assert window.chat.composer.chips.findChildren(Thumbnail) == []


@pytest.mark.parametrize("side", ["composer", "message"])
def test_thumbnails_are_whole_in_a_narrow_window(
    window: MainWindow, qtbot: QtBot, side: str
) -> None:
    window.resize(480, 720)
    wide = Attachment(name="wide", picture=base64.b64encode(saved(1600, 200)).decode())
    if side == "composer":
        window.chat.composer.show_draft(Draft(attachments=(PHOTO, wide)))
        chips = window.chat.composer.chips
    else:
        opened(window, qtbot, PHOTO, wide)
        chips = own(window).chips
    qtbot.waitUntil(lambda: chips.height() == chips.heightForWidth(chips.width()))

    for thumb in chips.findChildren(Thumbnail):
        assert thumb.size() == thumb.sizeHint()
        assert chips.rect().contains(thumb.rect().translated(thumb.mapTo(chips, QPoint(0, 0))))


def serving(*, sees: bool | None, name: str = "org/Eye", blind: str | None = None) -> ClusterState:
    served = ServedModel(name=name, created=1, is_loaded=True, sees=sees, blind=blind)
    return home(model=running_model(name=name), served=(served,))


def test_what_the_model_cannot_see_is_told_before_it_is_sent(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    composer = window.chat.composer
    backend.say(serving(sees=False, name="org/Blind"))
    assert composer.add.accessibleName() == "Attach texts"
    composer.show_draft(Draft(text="What?", attachments=(PHOTO,)))

    assert composer.blind.isVisible()
    assert composer.blind.text().startswith("Blind reads only text.")
    assert not composer.button.isEnabled()
    qtbot.keyClick(composer.text, Qt.Key.Key_Return)
    assert backend.chats == []
    assert composer.text.toPlainText() == "What?"

    backend.say(serving(sees=True))
    assert not composer.blind.isVisible()
    assert composer.add.accessibleName() == "Attach texts and pictures"
    qtbot.keyClick(composer.text, Qt.Key.Key_Return)
    assert [m.attachments for m in backend.chats[-1]] == [(PHOTO,)]


def test_why_a_model_that_could_see_does_not_is_told_with_the_picture(
    window: MainWindow, backend: ScriptedBackend
) -> None:
    why = "mmproj.gguf cannot be read: it is too short."
    backend.say(serving(sees=False, name="org/Blind", blind=why))

    window.chat.composer.show_draft(Draft(text="What?", attachments=(PHOTO,)))

    assert window.chat.composer.blind.text() == (
        f"Blind reads only text. {why} Take the pictures off, or choose a model that sees."
    )


def test_the_pictures_of_a_message_are_seen_while_it_is_edited(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(serving(sees=True))
    opened(window, qtbot, PHOTO)
    backend.replies[-1].finished.emit(ReplyEnd())

    own(window).open_editor()

    editor = own(window)._editor
    assert editor is not None
    (thumb,) = editor.findChildren(Thumbnail)
    qtbot.waitUntil(thumb.isVisible)


def test_the_guide_does_not_see_and_of_a_model_that_is_not_loaded_nothing_is_said() -> None:
    guide = ServedModel(name="guide", created=1, is_guide=True)
    mine = ServedModel(name="mine", created=1)

    assert [sees(home(served=(model,))) for model in (guide, mine)] == [False, None]
    assert sees(home()) is sees(None) is None


def test_a_chat_with_pictures_goes_on_with_a_model_that_does_not_see(
    window: MainWindow, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    backend.say(serving(sees=True))
    opened(window, qtbot, PHOTO)
    backend.replies[-1].text.emit("A lake.")
    backend.replies[-1].finished.emit(ReplyEnd())
    backend.say(serving(sees=False, name="org/Blind"))

    window.chat.composer.sent.emit("Which lake?", ())

    first, *others = backend.chats[-1]
    assert (first.text, first.attachments) == ("What is it?\n\n[picture: photo]", ())
    assert [m.text for m in others] == ["A lake.", "Which lake?"]
