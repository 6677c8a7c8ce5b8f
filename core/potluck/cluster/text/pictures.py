"""Prepare pictures of strangers, in the process that has limits: decode, turn, resample.

Pillow decodes. It is told which formats may come, and its size is looked at before any pixel is decoded.
"""

import hashlib
import io
import struct
import warnings
from collections.abc import Sequence

from PIL import Image, ImageOps

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.driver.pixel_room import MOST_PREPARED
from potluck.errors import PromptError
from potluck.model.vision.pictures import PictureFormat

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MOST_DECODED = 1 << 26  # pixels; 64 megapixels, more than cameras of telephones make at once
# What Pillow raises for malformed files: it has no error of its own for most of them.
_MALFORMED = (
    OSError, SyntaxError, ValueError, EOFError, MemoryError, OverflowError, IndexError, KeyError, TypeError,
    AttributeError, RuntimeError, struct.error,
)  # fmt: skip


def prepare_pictures(pictures: Sequence[bytes], form: PictureFormat) -> tuple[Picture, ...]:
    """Prepare the pictures of a prompt, each the bytes of a file.

    Raises:
        PromptError: one cannot be read, or they are too many.
    """
    prepared: list[Picture] = []
    left = MOST_PREPARED
    for number, data in enumerate(pictures, 1):
        prepared.append(_prepare(data, form, number))
        left -= len(prepared[-1].pixels)
        if left < 0:
            raise PromptError(
                f"The prompt has {len(pictures)} pictures, which are too many at once. Send fewer, or smaller ones."
            )
    return tuple(prepared)


def _prepare(data: bytes, form: PictureFormat, number: int) -> Picture:
    image = _decode(data, number)
    height, width = form.size(image.height, image.width)
    resized = image.resize((width, height), Image.Resampling(form.resample))
    pixels = resized.tobytes()
    rows, columns = form.cells(height, width)
    about = f"{height} {width} {form.mean} {form.deviation} ".encode()
    return Picture(
        name=hashlib.sha256(about + pixels).hexdigest(),
        height=height,
        width=width,
        rows=rows,
        columns=columns,
        mean=form.mean,
        deviation=form.deviation,
        pixels=pixels,
    )


def _decode(data: bytes, number: int) -> Image.Image:
    """The first frame of a file, upright, in red, green and blue. Transparency is left out, as `transformers` does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd files that can be read all the same
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if image.width * image.height > MOST_DECODED:
                    raise _too_large(number)
                upright = ImageOps.exif_transpose(image)
                if upright.mode.startswith(
                    "I;16"
                ):  # Pillow would cut all off that is brighter than 255
                    upright = upright.point(lambda value: value / 257).convert("L")
                return upright.convert("RGB")
    except Image.UnidentifiedImageError:
        raise PromptError(
            f"Picture {number} is no picture that can be read: it must be PNG, JPEG, WebP or GIF."
        ) from None
    except Image.DecompressionBombError:  # Pillow's own limit, beyond ours
        raise _too_large(number) from None
    except _MALFORMED as error:
        raise PromptError(
            f"Picture {number} is damaged or cut off, and cannot be read. Save it again, and send it anew."
        ) from error


def _too_large(number: int) -> PromptError:
    return PromptError(
        f"Picture {number} has more than {MOST_DECODED >> 20} megapixels. Make it smaller."
    )
