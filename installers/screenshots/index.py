"""Contact sheets: pictures with all scenes of one theme, scale and width, to be seen at a glance."""

from collections.abc import Container
from pathlib import Path

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QImage, QPainter

COLUMNS, MOST = 4, 12  # pictures in a row, and on a sheet
PREFIX = "sheet-"
GAP, CAPTION = 16, 22  # in pixels
LARGEST = QSize(480, 480)  # of a picture on a sheet
BACK, INK = QColor("#80858f"), QColor("#ffffff")


def write_sheets(folder: Path, widths: Container[int]) -> list[Path]:
    """Write `sheet-THEME-SCALE-WIDTH-NUMBER.png` for the pictures of a folder; returns their paths.

    Those of other widths, which are dialogs and menus, share `sheet-THEME-SCALE-others-NUMBER.png`.

    Raises:
        OSError: a sheet could not be written.
    """
    sheets: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*-*-*-*.png")):
        if not path.name.startswith(PREFIX):
            _, theme, scale, width = path.stem.rsplit("-", 3)
            kind = width if int(width) in widths else "others"
            sheets.setdefault(f"{theme}-{scale}-{kind}", []).append(path)
    return [
        _write(folder / f"{PREFIX}{key}-{at // MOST + 1}.png", pictures[at : at + MOST])
        for key, pictures in sheets.items()
        for at in range(0, len(pictures), MOST)
    ]


def _write(path: Path, pictures: list[Path]) -> Path:
    images = [_small(QImage(str(picture))) for picture in pictures]
    width = max(image.width() for image in images) + GAP
    rows = [range(at, min(at + COLUMNS, len(images))) for at in range(0, len(images), COLUMNS)]
    heights = [max(images[at].height() for at in row) + GAP + CAPTION for row in rows]
    size = QSize(GAP + width * min(COLUMNS, len(images)), GAP + sum(heights))
    sheet = QImage(size, QImage.Format.Format_RGB32)
    sheet.fill(BACK)
    painter = QPainter(sheet)
    painter.setPen(INK)
    top = GAP
    for row, height in zip(rows, heights, strict=True):
        for at in row:
            left = GAP + width * (at - row.start)
            name = pictures[at].stem.rsplit("-", 3)[0]
            caption = QRect(left, top, width - GAP, CAPTION)
            painter.drawText(caption, Qt.AlignmentFlag.AlignLeft, name)
            painter.drawImage(left, top + CAPTION, images[at])
        top += height
    painter.end()
    if not sheet.save(str(path)):
        raise OSError(f"{path} could not be written")
    return path


def _small(image: QImage) -> QImage:
    image.setDevicePixelRatio(1)
    if image.width() <= LARGEST.width() and image.height() <= LARGEST.height():
        return image
    return image.scaled(
        LARGEST, Qt.AspectRatioMode.KeepAspectRatio, Qt.TransformationMode.SmoothTransformation
    )
