"""Which size pictures get for a tower, and how they are cut into tiles. Pure arithmetic.

Checked against the image processors of `transformers` (`models/*/image_processing_*.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potluck.model.vision.spec import MOST_ROWS

_SINGLE = (
    np.float32
)  # `transformers` computes with canvases so: other choices where two are nearly alike


_LONGEST = 4096  # pixels of a side before Idefics cuts it


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What becomes of a picture. Sizes are heights and widths in pixels.

    Attributes:
        first: that it is resampled to before; None: it is as it was.
        size: that it is resampled to.
        frame: that it has then: black is added at its right and lower edges, or at all alike, or the same is cut off
            at opposite edges; None: that size.
        tiles: lines of squares that it is cut into, and squares of each line; they come one below the other.
        has_whole: whether the whole picture, as one square more, follows these; it is made of what was resampled, if that
            was twice.
        square: pixels of a square's side.
        step: from the first pixel of a square to that of the next, where what is between them is left out.
        is_centred: whether black is added at all edges.
        filled: the cells of all squares together that stand in prompts: the first line, the first column, lines,
            and columns; None: all, square by square.
    """

    size: tuple[int, int]
    first: tuple[int, int] | None = None
    frame: tuple[int, int] | None = None
    tiles: tuple[int, int] = (1, 1)
    has_whole: bool = False
    square: int = 0
    step: int = 0
    is_centred: bool = False
    filled: tuple[int, int, int, int] | None = None

    @property
    def pixels(self) -> tuple[int, int]:
        """The size of what the tower is shown."""
        if not self.square:
            return self.frame or self.size
        rows, columns = self.tiles
        return (rows * columns + self.has_whole) * self.square, self.square


def within_area(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Sides in whole cells, as they are, within two numbers of pixels (Qwen)."""
    most = min(most, MOST_ROWS * side * side)
    tall, wide = round(height / side) * side, round(width / side) * side
    if tall * wide > most:
        by = math.sqrt(height * width / most)
        tall, wide = (math.floor(each / by / side) * side for each in (height, width))
        return max(side, tall), max(side, wide)
    if tall * wide < least:
        by = math.sqrt(least / (height * width))
        return math.ceil(height * by / side) * side, math.ceil(width * by / side) * side
    return tall, wide


def as_frames(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """The same for a film of this picture twice, which is no smaller than a cell (GLM-4V)."""
    if min(height, width) < side:
        by = max(side / height, side / width)
        height, width = int(height * by), int(width * by)
    return within_area(height, width, side, -(-least // 2), most // 2)


def within_edge(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Sides in whole cells, the longer one of at most so many pixels (Pixtral)."""
    most = min(most, math.isqrt(MOST_ROWS) * side)
    if (by := max(height, width) / most) > 1:
        height, width = math.floor(height / by), math.floor(width / by)
    return (max(height, 1) - 1) // side * side + side, (max(width, 1) - 1) // side * side + side


def within_budget(height: int, width: int, side: int, rows: int) -> tuple[int, int]:
    """Sides in whole cells, as large as so many cells allow, smaller pictures too (Gemma 4)."""
    by = math.sqrt(rows * side * side / (height * width))
    tall, wide = (math.floor(by * each / side) * side for each in (height, width))
    if tall == 0:
        return side, min(width // height, rows) * side
    if wide == 0:
        return min(height // width, rows) * side, side
    return tall, wide


def cropped(height: int, width: int, square: int) -> Layout:
    """The middle of a picture whose shorter side is as long as the square's (CLIP)."""
    short, long = sorted((height, width))
    longer = int(square * long / short)
    size = (square, longer) if height == short else (longer, square)
    return Layout(size=size, frame=(square, square))


def grid(height: int, width: int, square: int, most: int) -> Layout:
    """As many tiles as come nearest to the picture's shape, which is stretched over them (InternVL)."""
    shapes = [(wide, tall) for wide in range(1, most + 1) for tall in range(1, most // wide + 1)]
    best, least = (1, 1), math.inf
    for wide, tall in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
        differs = abs(width / height - wide / tall)
        is_large = height * width > 0.5 * square * square * wide * tall
        if differs < least or (differs == least and is_large):
            best, least = (wide, tall), differs
    wide, tall = best
    return Layout(
        size=(tall * square, wide * square),
        tiles=(tall, wide),
        has_whole=wide * tall > 1,
        square=square,
    )


def canvas(height: int, width: int, square: int, most: int) -> Layout:
    """Tiles that the picture fills best in its own shape; the rest of them is black (Llama 4).

    It is made larger up to one tile only. Of several that it fills alike, the fewest are taken.
    """
    scales = {
        (tall, wide): min(_SINGLE(tall * square) / height, _SINGLE(wide * square) / width)
        for tall, wide in _shapes(most)
    }
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    tall, wide = min(
        (shape for shape, scale in scales.items() if scale == chosen),
        key=lambda shape: shape[0] * shape[1],
    )
    frame = tall * square, wide * square
    most_tall, most_wide = (
        max(own, square) if max(own, square) <= side else _SINGLE(side)
        for own, side in zip((height, width), frame, strict=True)
    )
    by_width, by_height = most_wide / width, most_tall / height
    if by_width < by_height:
        size = min(math.floor(height * by_width), int(most_tall)), int(most_wide)
    else:
        size = int(most_tall), min(math.floor(width * by_height), int(most_wide))
    return Layout(
        size=(max(1, size[0]), max(1, size[1])),
        frame=frame,
        tiles=(tall, wide),
        has_whole=tall * wide > 1,
        square=square,
    )


def shaped(
    height: int, width: int, square: int, side: int, shapes: Sequence[tuple[int, int]]
) -> Layout:
    """Tiles of one of some shapes, in whose middle the picture stands in its own shape, on black (LLaVA-NeXT).

    Taken is the shape in which most of the picture's pixels are left, and of several the smallest. Black lines and columns are
    left out of prompts, as far as they are whole cells.
    """

    def scale_of(shape: tuple[int, int]) -> float:
        return min(shape[1] * square / width, shape[0] * square / height)

    def left_of(shape: tuple[int, int]) -> tuple[int, int]:
        scale = scale_of(shape)
        left = min(int(width * scale) * int(height * scale), width * height)
        return left, left - shape[0] * shape[1] * square * square

    tall, wide = max(shapes, key=left_of)
    frame = tall * square, wide * square
    by_width, by_height = frame[1] / width, frame[0] / height
    if by_width < by_height:
        size = min(math.ceil(height * by_width), frame[0]), frame[1]
    else:
        size = frame[0], min(math.ceil(width * by_height), frame[1])
    return Layout(
        size=size,
        frame=frame,
        tiles=(tall, wide),
        has_whole=True,
        square=square,
        is_centred=True,
        filled=_filled(height, width, frame[0] // side, frame[1] // side),
    )


def split(height: int, width: int, square: int, step: int, edge: int, most: int) -> Layout:
    """Tiles of a picture that is stretched over whole ones, once its longer side has so many pixels (Idefics 3).

    Args:
        height: of the picture.
        width: likewise.
        square: pixels of a tile's side.
        step: from one tile to the next; what is beyond a square is left out.
        edge: pixels of the longer side.
        most: tiles, the whole picture with them; 1: it is not cut. Where they would be more, the side is shorter.
    """
    edge = min(edge, _LONGEST)
    while True:
        first = _with_edge(height, width, edge)
        tall, wide = _in_steps(*first, step) if most > 1 else (1, 1)
        if tall * wide < max(2, most):
            break
        edge = max(step, edge - step)
    return Layout(
        first=first,
        size=(tall * step, wide * step),
        tiles=(tall, wide),
        has_whole=tall * wide > 1,
        square=square,
        step=step,
    )


def _with_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    """A picture's sides, the longer one with so many pixels, the other one with an even number."""
    if width >= height:
        other = int(edge / (width / height))
        return max(1, other + other % 2), edge
    other = int(edge * (width / height))
    return edge, max(1, other + other % 2)


def _in_steps(height: int, width: int, step: int) -> tuple[int, int]:
    """How many tiles a picture is stretched over: those of its longer side, and as many as its shape needs then."""
    if width >= height:
        wide = math.ceil(width / step)
        return math.ceil(int(wide * step / (width / height)) / step), wide
    tall = math.ceil(height / step)
    return tall, math.ceil(int(tall * step * (width / height)) / step)


def _filled(height: int, width: int, lines: int, columns: int) -> tuple[int, int, int, int]:
    """Which of these cells a picture of this shape fills in the middle."""
    if width / height > columns / lines:
        black = (lines - _whole(height * (columns / width))) // 2
        return black, 0, lines - 2 * black, columns
    black = (columns - _whole(width * (lines / height))) // 2
    return 0, black, lines, columns - 2 * black


def _whole(number: float) -> int:
    """Without what rounding may have taken off a whole number."""
    return int(round(number, 7))


def _shapes(most: int) -> list[tuple[int, int]]:
    """Lines and tiles of each, of all canvases of so many tiles: those of one shape together, the largest first."""
    counts = range(most, 0, -1)
    shapes = [(tall, count // tall) for count in counts for tall in _divisors(count)]
    first: dict[float, int] = {}
    for place, (tall, wide) in enumerate(shapes):
        first.setdefault(tall / wide, place)
    return sorted(shapes, key=lambda shape: first[shape[0] / shape[1]])


def _divisors(count: int) -> list[int]:
    return [number for number in range(1, count + 1) if count % number == 0]
