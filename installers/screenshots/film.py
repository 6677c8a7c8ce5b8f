"""The first minute as an animation: pictures of the scenes, one after the other, in one APNG.

Format: https://www.w3.org/TR/png-3/#apng-frame-based-animation. Browsers and GitHub show it as a PNG.
"""

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image
from screenshots.colours import in_few_colours

FRAMES = (
    ("first", 3),
    ("cluster-alone", 3),
    ("cluster-first-found", 4),
    ("cluster-streaming", 4),
    ("cluster", 4),
    ("chat", 4),
    ("chat-reading", 2),
    ("chat-writing", 4),
)
"""The scenes, and how many seconds each is shown."""
FILE = "first-minute.png"
_SHARED = (b"IHDR", b"PLTE")  # what all frames have in common
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def write_film(folder: Path, ending: str) -> Path:
    """Write `first-minute.png` from the pictures of a folder; returns its path.

    Args:
        folder: where the pictures are, and the film goes.
        ending: of the names of the pictures after the scene, such as "light-100-1180".

    Raises:
        OSError: a picture is not there, or the film could not be written.
        ValueError: the pictures differ in size or format.
    """
    path = folder / FILE
    pictures = [Image.open(folder / f"{scene}-{ending}.png") for scene, _ in FRAMES]
    path.write_bytes(animation(_frames(pictures), [seconds for _, seconds in FRAMES]))
    return path


def _frames(pictures: Sequence[Image.Image]) -> list[bytes]:
    """Return these pictures of one size as PNGs that have the same 256 colours."""
    width, height = pictures[0].size
    if any(picture.size != (width, height) for picture in pictures):
        raise ValueError("the pictures of an animation have one size")
    strip = Image.new("RGB", (width, height * len(pictures)))
    for number, picture in enumerate(pictures):
        strip.paste(picture, (0, height * number))
    few = in_few_colours(strip)
    written: list[bytes] = []
    for top in range(0, few.height, height):
        file = io.BytesIO()
        few.crop((0, top, width, top + height)).save(file, "PNG", optimize=False, compress_level=9)
        written.append(file.getvalue())
    return written


def animation(pictures: Sequence[bytes], seconds: Sequence[int]) -> bytes:
    """Return one animated PNG of these PNGs, which repeats without end.

    Raises:
        ValueError: the pictures differ in size, format or colours.
    """
    all_chunks = [list(_chunks(picture)) for picture in pictures]
    shared = [each for each in all_chunks[0] if each[0] in _SHARED]
    if any([each for each in chunks if each[0] in _SHARED] != shared for chunks in all_chunks):
        raise ValueError("the pictures of an animation have one size, one format and one palette")
    size = shared[0][1][:8]  # width and height
    result = [_SIGNATURE, *(_chunk(kind, content) for kind, content in shared)]
    result.append(_chunk(b"acTL", struct.pack(">II", len(pictures), 0)))
    number = 0  # of the chunk within the animation
    for chunks, shown in zip(all_chunks, seconds, strict=True):
        data = b"".join(content for kind, content in chunks if kind == b"IDAT")
        control = struct.pack(">I8sIIHHBB", number, size, 0, 0, shown, 1, 0, 0)
        result.append(_chunk(b"fcTL", control))
        if number == 0:
            result.append(_chunk(b"IDAT", data))
            number += 1
        else:
            result.append(_chunk(b"fdAT", struct.pack(">I", number + 1) + data))
            number += 2
    return b"".join([*result, _chunk(b"IEND", b"")])


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each part of a PNG."""
    at = len(_SIGNATURE)
    while at < len(picture):
        length, kind = struct.unpack_from(">I4s", picture, at)
        yield kind, picture[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )
