"""A text as a QR code."""

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QImage, QPixmap
from PySide6.QtWidgets import QLabel

from potluck_app.views.widgets.words import Described

_QUIET = 4  # modules around the code, without which readers do not find it (ISO 18004)
_MODULE = 3  # logical pixels


class QrCode(Described, QLabel):
    """Shows a text as a QR code, dark on white in every theme, since readers want it so."""

    def __init__(self, accessible_name: str) -> None:
        super().__init__()
        self.setAccessibleName(accessible_name)
        self.hide()

    def show_text(self, text: str) -> None:
        """Show this text."""
        picture = qr_image(text)
        size = picture.size() * _MODULE
        scale = max(self.devicePixelRatioF(), 1.0)
        pixels = QSize(round(size.width() * scale), round(size.height() * scale))
        pixmap = QPixmap.fromImage(picture).scaled(
            pixels, Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.FastTransformation
        )
        pixmap.setDevicePixelRatio(scale)
        self.setPixmap(pixmap)
        self.setFixedSize(size)
        self.show()


def qr_image(text: str) -> QImage:
    """Return the code with a pixel for each module, and its quiet zone."""
    import segno  # no other part of the window needs it

    rows = list(segno.make_qr(text, error="m").matrix)
    side = len(rows) + 2 * _QUIET
    image = QImage(side, side, QImage.Format.Format_RGB32)
    image.fill(Qt.GlobalColor.white)
    for y, row in enumerate(rows, _QUIET):
        for x, is_dark in enumerate(row, _QUIET):
            if is_dark:
                image.setPixelColor(x, y, Qt.GlobalColor.black)
    return image
