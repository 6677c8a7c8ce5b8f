"""How pictures are prepared for a model's tower, and where they stand in its prompts.

A picture gets a size of whole cells, which its model's kind of size says, and is resampled to it. The template
writes a mark for each picture; in its place come as many tokens as the tower makes rows. Checked against the image
processors of `transformers` (`models/*/image_processing_pil_*.py`) and its processors (`processing_*.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from potluck.errors import PromptError
from potluck.model.fields import Fields
from potluck.model.vision.spec import MOST_ROWS, TowerSpec

_MOST_STRETCHED = 200  # times as long as wide a picture may be
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
_HALF = (0.5, 0.5, 0.5)

Levels = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFacts:
    """In what the pictures of a family differ from those of others.

    Attributes:
        size: "area": sides as they are, within two numbers of pixels; "edge": the longer side is no longer than
            a number of pixels; "square": always the same square.
        resample: a filter by Pillow's number.
        mark: what templates write for a picture.
        opens, token, line_end, closes: the text of a picture: `token` for each row of the tower, after each line
            of cells `line_end`, and `closes` in place of the last of these.
        least, most: pixels of a picture ("area"), or of its longer side ("edge"), where files do not say.
    """

    size: Literal["area", "edge", "square"]
    resample: int = 3
    mean: Levels = _HALF
    deviation: Levels = _HALF
    mark: str
    opens: str = ""
    token: str
    line_end: str = ""
    closes: str = ""
    least: int = 0
    most: int = 0


_QWEN_2_5 = PictureFacts(
    size="area",
    mean=_CLIP_MEAN,
    deviation=_CLIP_DEVIATION,
    mark="<|image_pad|>",
    token="<|image_pad|>",  # noqa: S106
    least=56 * 56,
    most=28 * 28 * 1280,
)
_QWEN_3 = PictureFacts(
    size="area",
    mark="<|image_pad|>",
    token="<|image_pad|>",  # noqa: S106
    least=1 << 16,
    most=1 << 24,
)
_FACTS: Mapping[str, PictureFacts] = {
    "Gemma3ForConditionalGeneration": PictureFacts(
        size="square",
        resample=2,
        mark="<start_of_image>",
        opens="\n\n<start_of_image>",
        token="<image_soft_token>",  # noqa: S106
        closes="<end_of_image>\n\n",
    ),
    "Mistral3ForConditionalGeneration": PictureFacts(
        size="edge",
        mean=_CLIP_MEAN,
        deviation=_CLIP_DEVIATION,
        mark="[IMG]",
        token="[IMG]",  # noqa: S106
        line_end="[IMG_BREAK]",
        closes="[IMG_END]",
        most=1540,
    ),
    "Qwen2_5_VLForConditionalGeneration": _QWEN_2_5,
    "Qwen3VLForConditionalGeneration": _QWEN_3,
    "Qwen3_5ForConditionalGeneration": _QWEN_3,
    "Qwen3_5MoeForConditionalGeneration": _QWEN_3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFormat:
    """How one model takes pictures.

    Attributes:
        side: pixels of a cell's side.
        square: pixels of the square that all pictures become, if they do.
        least, most: as of `PictureFacts`.
    """

    facts: PictureFacts
    side: int
    square: int
    least: int
    most: int
    resample: int
    mean: Levels
    deviation: Levels

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that a picture gets, in whole cells.

        Raises:
            PromptError: it is far longer than it is wide, or the other way round.
        """
        if max(height, width) > _MOST_STRETCHED * min(height, width):
            raise PromptError(
                f"A picture has {width} x {height} pixels. Cut it: a model sees nothing in one whose sides"
                f" differ by more than {_MOST_STRETCHED} times."
            )
        if self.facts.size == "square":
            return self.square, self.square
        if self.facts.size == "edge":
            return self._within_edge(height, width)
        return self._within_area(height, width)

    def _within_area(self, height: int, width: int) -> tuple[int, int]:
        side, most = self.side, min(self.most, MOST_ROWS * self.side * self.side)
        tall, wide = round(height / side) * side, round(width / side) * side
        if tall * wide > most:
            by = math.sqrt(height * width / most)
            tall, wide = (math.floor(each / by / side) * side for each in (height, width))
            return max(side, tall), max(side, wide)
        if tall * wide < self.least:
            by = math.sqrt(self.least / (height * width))
            return math.ceil(height * by / side) * side, math.ceil(width * by / side) * side
        return tall, wide

    def _within_edge(self, height: int, width: int) -> tuple[int, int]:
        side, most = self.side, min(self.most, math.isqrt(MOST_ROWS) * self.side)
        if (by := max(height, width) / most) > 1:
            height, width = math.floor(height / by), math.floor(width / by)
        return (max(height, 1) - 1) // side * side + side, (max(width, 1) - 1) // side * side + side

    def text(self, height: int, width: int) -> str:
        """What stands in the prompt for a picture of this size."""
        rows, columns = self.cells(height, width)
        facts = self.facts
        lines = [facts.token * columns + facts.line_end] * rows
        return facts.opens + "".join(lines).removesuffix(facts.line_end) + facts.closes

    def cells(self, height: int, width: int) -> tuple[int, int]:
        """Lines of cells of a picture of this size, and cells of each line."""
        return height // self.side, width // self.side


def picture_format(
    architecture: str, tower: TowerSpec | None, given: Mapping[str, object]
) -> PictureFormat | None:
    """How a model takes pictures; None: it takes none.

    Args:
        architecture: of the model.
        tower: of the model; None: it has none that is known.
        given: what its `preprocessor_config.json` says; empty: there is none.

    Raises:
        InvalidConfigError: that file is damaged.
    """
    facts = _FACTS.get(architecture)
    if tower is None or facts is None:
        return None
    fields = Fields(given, "preprocessor_config.json")
    size = fields.fields("size") if isinstance(fields.value("size"), Mapping) else Fields({})
    most = MOST_ROWS * (tower.patch * tower.merge) ** 2
    names = ("min_pixels", "max_pixels")
    least = size.integer("shortest_edge", 1, 1 << 32, facts.least or 1)
    largest = size.integer("longest_edge", 1, 1 << 32, facts.most or most)
    return PictureFormat(
        facts=facts,
        side=tower.patch * tower.merge,
        square=tower.patch * tower.side,
        least=min(fields.integer(names[0], 1, 1 << 32, least), most),
        most=fields.integer(names[1], 1, 1 << 32, largest),
        resample=fields.integer("resample", 0, 5, facts.resample),
        mean=_levels(fields, "image_mean", facts.mean, low=-1e3),
        deviation=_levels(fields, "image_std", facts.deviation, low=1e-6),
    )


def _levels(fields: Fields, name: str, default: Levels, *, low: float) -> Levels:
    if name not in fields:
        return default
    red, green, blue = fields.numbers(name, low, 1e3, 3)
    return red, green, blue
