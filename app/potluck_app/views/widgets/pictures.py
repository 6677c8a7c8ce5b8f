"""Pictures of the person: made small enough to be sent, and shown in a small size."""

import base64
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QSize, Qt
from PySide6.QtGui import QImage, QImageIOHandler, QImageReader, QPixmap

from potluck_app.chats.values import Attachment

_LONGEST = 1600  # pixels of a side: models see no more of it
_SMALL_BYTES = 1 << 20  # of a file that is sent as it is
_WEBP_BYTES = 4 << 20  # of a file that is sent though Qt cannot read it
_ENDINGS = {"png": (".png",), "jpeg": (".jpg", ".jpeg"), "gif": (".gif",), "webp": (".webp",)}
_QUALITY = 90  # of a JPEG file


def small_picture(data: bytes) -> bytes | None:
    """The file of a picture, with sides of at most so many pixels; None: it is none that can be read.

    It may be called in any thread.
    """
    reader, buffer = _reader(data)
    size = reader.size()
    if not size.isValid():
        is_webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"  # which not every Qt reads
        return data if is_webp and len(data) <= _WEBP_BYTES else None
    longest = max(size.width(), size.height())
    if longest <= _LONGEST and len(data) <= _SMALL_BYTES and _is_taken(reader):
        return data
    if longest > _LONGEST:
        reader.setScaledSize(_within(size, _LONGEST))
    image = reader.read()
    buffer.close()
    return None if image.isNull() else encoded(image)


def encoded(image: QImage) -> bytes:
    """The file of an image: PNG if some of it may be transparent, else JPEG, and if the PNG is large."""
    if max(image.width(), image.height()) > _LONGEST:
        smooth = Qt.TransformationMode.SmoothTransformation
        image = image.scaled(_within(image.size(), _LONGEST), mode=smooth)
    if image.hasAlphaChannel():
        data = _saved(image, "PNG")
        if len(data) <= _SMALL_BYTES:
            return data
        image = image.convertToFormat(QImage.Format.Format_RGB32)  # models see no transparency
    return _saved(image, "JPEG")


def _saved(image: QImage, form: str) -> bytes:
    bytes_ = QByteArray()
    buffer = QBuffer(bytes_)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    quality = _QUALITY if form == "JPEG" else -1
    image.save(buffer, form, quality)  # pyright: ignore[reportCallIssue, reportArgumentType] - as the C++ has it
    return bytes(bytes_.data())


def thumbnail(picture: str, height: int) -> QPixmap:
    """A picture in base64, at most so many pixels high and twice as wide; a null pixmap if it cannot be read."""
    return _fitted(picture, lambda _size: QSize(2 * height, height))


def whole(picture: str) -> QPixmap:
    """A picture in base64, no larger than one that is sent; a null pixmap if it cannot be read."""
    return _fitted(picture, lambda size: size.boundedTo(_within(size, _LONGEST)))


def file_name(attachment: Attachment) -> str:
    """A name for a picture's file, with the ending of its format."""
    reader, _buffer = _reader(base64.b64decode(attachment.picture))
    form = bytes(reader.format().data()).decode()
    plain = "".join(c if c.isalnum() or c in " -_." else "_" for c in attachment.name)
    path = Path(plain.strip(" .") or "picture")
    endings = _ENDINGS.get(form, ())
    is_right = not endings or path.suffix.casefold() in endings
    return path.name if is_right else f"{path.stem}{endings[0]}"


def _fitted(picture: str, room: Callable[[QSize], QSize]) -> QPixmap:
    """A picture in base64, within what `room` returns for its size."""
    try:
        reader, _buffer = _reader(base64.b64decode(picture))
    except ValueError:  # of an imported chat
        return QPixmap()
    size = reader.size()
    if size.isValid():
        # It is scaled before it is turned as the camera was held.
        turned = bool(
            reader.transformation() & QImageIOHandler.Transformation.TransformationRotate90
        )
        most = room(size)
        size.scale(most.transposed() if turned else most, Qt.AspectRatioMode.KeepAspectRatio)
        reader.setScaledSize(size.expandedTo(QSize(1, 1)))
    return QPixmap.fromImage(reader.read())


def _reader(data: bytes) -> tuple[QImageReader, QBuffer]:
    """A reader, and what it reads, which has to live as long."""
    buffer = QBuffer()
    buffer.setData(QByteArray(data))
    buffer.open(QIODevice.OpenModeFlag.ReadOnly)
    reader = QImageReader(buffer)
    reader.setAutoTransform(True)  # as the camera was held
    return reader, buffer


def _is_taken(reader: QImageReader) -> bool:
    return reader.format().data() in (b"png", b"jpeg", b"gif", b"webp")


def _within(size: QSize, longest: int) -> QSize:
    return size.scaled(longest, longest, Qt.AspectRatioMode.KeepAspectRatio)
