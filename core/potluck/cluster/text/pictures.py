"""Prepare pictures of strangers, in the process that has limits: decode, turn, resample.

Pillow decodes. It is told which formats may come, and its size is looked at before any pixel is decoded.
"""

import hashlib
import io
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageOps

from potluck.cluster.driver.model_text import Picture
from potluck.cluster.driver.pixel_room import MOST_PREPARED
from potluck.errors import PromptError
from potluck.model.vision.layouts import Layout
from potluck.model.vision.pictures import PictureFormat

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MOST_DECODED = 1 << 26  # pixels; 64 megapixels, more than cameras of telephones make at once
_LINES = 256  # of a picture, which are laid on white at a time
# What Pillow raises for malformed files: it has no error of its own for most of them.
_MALFORMED = (
    OSError, SyntaxError, ValueError, EOFError, MemoryError, OverflowError, IndexError, KeyError, TypeError,
    AttributeError, RuntimeError, AssertionError, struct.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A picture as the tower takes it, and how it was cut."""

    picture: Picture
    layout: Layout


def prepare_pictures(pictures: Sequence[bytes], form: PictureFormat) -> tuple[Prepared, ...]:
    """Prepare the pictures of a prompt, each the bytes of a file.

    Raises:
        PromptError: one cannot be read, or they are too many.
    """
    prepared: list[Prepared] = []
    left = MOST_PREPARED
    for number, data in enumerate(pictures, 1):
        prepared.append(_prepare(data, form, number))
        left -= len(prepared[-1].picture.pixels)
        if left < 0:
            raise PromptError(
                f"The prompt has {len(pictures)} pictures, which are too many at once. Send fewer, or smaller ones."
            )
    return tuple(prepared)


def _prepare(data: bytes, form: PictureFormat, number: int) -> Prepared:
    image = _decode(data, number)
    layout = form.layout(image.height, image.width)
    pixels = _laid_out(image, layout, Image.Resampling(form.resample))
    height, width = layout.pixels
    rows, columns = form.cells(height, width)
    order = form.order(layout)
    about = f"{height} {width} {form.mean} {form.deviation} {order or ''}".encode()
    picture = Picture(
        name=hashlib.sha256(about + pixels).hexdigest(),
        height=height,
        width=width,
        rows=rows,
        columns=columns,
        mean=form.mean,
        deviation=form.deviation,
        pixels=pixels,
        order=order,
    )
    return Prepared(picture=picture, layout=layout)


def _laid_out(image: Image.Image, layout: Layout, resample: Image.Resampling) -> bytes:
    """The pixels of a picture, line by line, its tiles one below the other."""
    if layout.first is not None:
        height, width = layout.first
        image = image.resize((width, height), resample)
    height, width = layout.size
    resized = image.resize((width, height), resample)
    resized = _framed(resized, layout)
    if not layout.square:
        return resized.tobytes()
    rows, columns = layout.tiles
    side, step = layout.square, layout.step or layout.square
    tiles = [
        resized.crop((column * step, row * step, column * step + side, row * step + side))
        for row in range(rows)
        for column in range(columns)
    ]
    if layout.has_whole:
        whole = image if layout.first is None else resized
        tiles.append(whole.resize((step, step), resample).crop((0, 0, side, side)))
    return b"".join(tile.tobytes() for tile in tiles)


def _framed(image: Image.Image, layout: Layout) -> Image.Image:
    """The picture in a black frame, or its middle. Pillow makes black of what lies beyond it."""
    if layout.frame is None:
        return image
    height, width = layout.frame
    left, top = 0, 0
    if layout.is_centred:
        left, top = -((width - image.width) // 2), -((height - image.height) // 2)
    elif not layout.square:
        left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _decode(data: bytes, number: int) -> Image.Image:
    """The first frame of a file, upright, in red, green and blue, on white where it lets through what is behind it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd files that can be read all the same
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if image.width * image.height > MOST_DECODED:
                    raise _too_large(number)
                image.load()
                ImageOps.exif_transpose(image, in_place=True)  # a copy would take as much again
                return _coloured(image)
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


def _coloured(image: Image.Image) -> Image.Image:
    """In red, green and blue. The processors of `transformers` lay pictures on white, too."""
    if image.mode.startswith("I;16"):  # Pillow would cut all off that is brighter than 255
        return image.point(lambda value: value / 257).convert("L").convert("RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    found = Image.new("RGB", image.size)
    for top in range(0, image.height, _LINES):  # the whole in four colours, twice, would be large
        box = (0, top, image.width, min(top + _LINES, image.height))
        some = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", some.size, "white")
        found.paste(Image.alpha_composite(white, some).convert("RGB"), box)
    return found


def _too_large(number: int) -> PromptError:
    return PromptError(
        f"Picture {number} has more than {MOST_DECODED >> 20} megapixels. Make it smaller."
    )
