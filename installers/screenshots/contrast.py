"""How well a text is told from what is behind it, by the pixels of its picture."""

from collections import Counter

from PySide6.QtGui import QColor, QImage

_FEWEST = 3  # pixels that have a colour: fewer are noise at an edge


def contrast(picture: QImage) -> float:
    """Return the ratio of the luminance of the text and its background, from 1 to 21 (WCAG 2).

    The background is the colour that most pixels have; the text, the one that differs most from it.
    """
    places = ((x, y) for y in range(picture.height()) for x in range(picture.width()))
    counted = Counter(picture.pixel(x, y) for x, y in places)
    colours = counted.most_common()
    if not colours:
        return 1.0
    behind = _luminance(colours[0][0])
    return max(_ratio(_luminance(rgb), behind) for rgb, count in colours if count >= _FEWEST)


def _ratio(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def _luminance(rgb: int) -> float:
    color = QColor(rgb)
    red, green, blue = map(_linear, (color.redF(), color.greenF(), color.blueF()))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(share: float) -> float:
    return share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4
