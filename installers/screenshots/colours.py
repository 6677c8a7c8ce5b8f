"""Pictures with a palette, a third as large as others, in which nobody sees the difference."""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_COLOURS: Final = 256
_EXACT: Final = 160  # of them, those that most pixels have; the others are far from these


def in_few_colours(picture: Image.Image) -> Image.Image:
    """Return a picture with 256 colours: all surfaces have theirs, and so has what is small, such as a number in code."""
    pixels = np.asarray(picture.convert("RGB"), np.int32)
    packed = pixels @ np.array([1 << 16, 1 << 8, 1], np.int32)
    found, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([found >> 16, found >> 8 & 255, found & 255], axis=1)
    chosen = list(np.argsort(-counts, kind="stable")[:_EXACT])
    away = np.min([_distance(colours, each) for each in chosen], axis=0)
    while len(chosen) < min(_COLOURS, len(colours)) and away.any():
        chosen.append(np.argmax(away))
        away = np.minimum(away, _distance(colours, chosen[-1]))
    nearest = np.argmin([_distance(colours, each) for each in chosen], axis=0)
    few = Image.fromarray(nearest.astype(np.uint8)[places].reshape(packed.shape))
    few.putpalette(colours[chosen].astype(np.uint8).tobytes())
    return few


def _distance(colours: NDArray[np.int32], place: np.intp) -> NDArray[np.int32]:
    """How far each colour is from the one at this place, squared."""
    return ((colours - colours[place]) ** 2).sum(axis=1)
