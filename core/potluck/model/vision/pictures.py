"""How pictures are prepared for a model's tower, and where they stand in its prompts.

A picture gets a size of whole cells, which its model's kind of size says, and is resampled to it. The template
writes a mark for each picture; in its place come as many tokens as the tower makes rows. Checked against the image
processors of `transformers` (`models/*/image_processing_pil_*.py`) and its processors (`processing_*.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import numpy as np

from potluck.errors import PromptError
from potluck.model.fields import Fields
from potluck.model.vision.layouts import (
    Layout,
    as_frames,
    canvas,
    cropped,
    grid,
    shaped,
    split,
    within_area,
    within_budget,
    within_edge,
)
from potluck.model.vision.spec import MOST_ROWS, TowerSpec

_MOST_STRETCHED = 200  # times as long as wide a picture may be
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_DEVIATION = (0.229, 0.224, 0.225)
_HALF = (0.5, 0.5, 0.5)

Levels = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFacts:
    """In what the pictures of a family differ from those of others.

    Attributes:
        size: a kind of size, which `PictureFormat.layout` describes.
        resample: a filter by Pillow's number.
        mark: what templates write for a picture.
        opens, token, line_end, closes: the text of a picture: `token` for each row of the tower, after each line
            of cells `line_end`, and `closes` in place of the last of these.
        tile: what stands before a tile, with the numbers of its line and of its place in that.
        tiles: what stands between tiles of a line, after a line of them, and before the whole picture, where
            a picture is cut into tiles.
        tiles_end: what stands behind the last line of them.
        least, most: pixels of a picture ("area"), or of its longer side ("edge"), where files do not say.
        rows: of the tower's, at most ("budget"), or tiles ("grid", "canvas"), likewise.
    """

    size: Literal[
        "area", "edge", "square", "budget", "crop", "grid", "canvas", "shapes", "split", "frames"
    ]
    resample: int = 3
    mean: Levels = _HALF
    deviation: Levels = _HALF
    mark: str
    opens: str = ""
    token: str
    line_end: str = ""
    closes: str = ""
    tile: str = ""
    tiles: tuple[str, str, str] = ("", "", "")
    tiles_end: str = ""
    least: int = 0
    most: int = 0
    rows: int = 0


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
_GEMMA_4 = PictureFacts(
    size="budget",
    mean=(0.0, 0.0, 0.0),
    deviation=(1.0, 1.0, 1.0),
    mark="<|image|>",
    opens="<|image>",
    token="<|image|>",  # noqa: S106
    closes="<image|>",
    rows=280,
)
_PIXTRAL = PictureFacts(
    size="edge",
    mean=_CLIP_MEAN,
    deviation=_CLIP_DEVIATION,
    mark="[IMG]",
    token="[IMG]",  # noqa: S106
    line_end="[IMG_BREAK]",
    closes="[IMG_END]",
    most=1540,
)
_LIGHT_ON_OCR = replace(
    _PIXTRAL,
    mark="<|image_pad|>",
    token="<|image_pad|>",  # noqa: S106
    line_end="",
    closes="",
)
_LLAVA = PictureFacts(
    size="crop",
    mean=_CLIP_MEAN,
    deviation=_CLIP_DEVIATION,
    mark="<image>",
    token="<image>",  # noqa: S106
)
_GLM_4 = PictureFacts(
    size="frames",
    mean=_CLIP_MEAN,
    deviation=_CLIP_DEVIATION,
    mark="<|image|>",
    token="<|image|>",  # noqa: S106
    least=112 * 112,
    most=28 * 28 * 15000,
)
_IDEFICS_3 = PictureFacts(
    size="split",
    resample=1,
    mark="<image>",
    token="<image>",  # noqa: S106
    closes="<fake_token_around_image>",
    tile="<fake_token_around_image><row_{}_col_{}>",
    tiles=("", "\n", "<fake_token_around_image><global-img>"),
    tiles_end="\n",
    most=4 * 364,
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
    "Gemma4ForConditionalGeneration": _GEMMA_4,
    "Gemma4UnifiedForConditionalGeneration": _GEMMA_4,
    "Glm4vForConditionalGeneration": _GLM_4,
    "Glm4vMoeForConditionalGeneration": _GLM_4,
    "Glm46VForConditionalGeneration": _GLM_4,
    "Idefics3ForConditionalGeneration": _IDEFICS_3,
    "SmolVLMForConditionalGeneration": _IDEFICS_3,
    "InternVLForConditionalGeneration": PictureFacts(
        size="grid",
        mean=_IMAGENET_MEAN,
        deviation=_IMAGENET_DEVIATION,
        mark="<IMG_CONTEXT>",
        opens="<img>",
        token="<IMG_CONTEXT>",  # noqa: S106
        closes="</img>",
        rows=12,
    ),
    "Llama4ForConditionalGeneration": PictureFacts(
        size="canvas",
        resample=2,
        mark="<|image|>",
        opens="<|image_start|>",
        token="<|patch|>",  # noqa: S106
        closes="<|image_end|>",
        tiles=("<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>"),
        rows=16,
    ),
    "LightOnOCRForConditionalGeneration": _LIGHT_ON_OCR,
    "LightOnOcrForConditionalGeneration": _LIGHT_ON_OCR,
    "LlavaForConditionalGeneration/clip_vision_model": _LLAVA,
    "LlavaNextForConditionalGeneration/clip_vision_model": replace(_LLAVA, size="shapes"),
    "LlavaForConditionalGeneration/pixtral": replace(_PIXTRAL, most=1024),
    "Mistral3ForConditionalGeneration": _PIXTRAL,
    "Qwen2VLForConditionalGeneration": _QWEN_2_5,
    "Qwen2_5_VLForConditionalGeneration": _QWEN_2_5,
    "Qwen3VLForConditionalGeneration": _QWEN_3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN_3,
    "Qwen3_5ForConditionalGeneration": _QWEN_3,
    "Qwen3_5MoeForConditionalGeneration": _QWEN_3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFormat:
    """How one model takes pictures.

    Attributes:
        side: pixels of a cell's side.
        square: pixels of the square that all pictures or tiles become, if they do.
        least, most, rows: as of `PictureFacts`.
        shapes: of tiles: lines of them, and tiles of each; empty: any.
        step: pixels from one tile to the next ("split").
    """

    facts: PictureFacts
    side: int
    square: int
    least: int
    most: int
    rows: int
    resample: int
    mean: Levels
    deviation: Levels
    shapes: tuple[tuple[int, int], ...] = ()
    step: int = 0

    def layout(self, height: int, width: int) -> Layout:
        """How a picture of this size is resized and cut.

        - "area": sides as they are, within two numbers of pixels; "frames": the same of two pictures together, of which each is
          a cell at least; "edge": the longer side is no longer than
          a number of pixels; "budget": as large as a number of rows allows;
        - "square": always the same square; "crop": the middle of it, once its shorter side is as long as the square's;
        - "grid": tiles of the shape that is nearest to the picture's; "canvas": tiles that the picture, in its own
          shape, fills best; "shapes": tiles of one of some shapes, in whose middle the picture stands, in its own shape.
          The whole picture follows as one tile more, as in "split": tiles of the picture, once its longer side has a
          number of pixels, stretched over whole ones.

        Raises:
            PromptError: it is far longer than it is wide, or the other way round.
        """
        if max(height, width) > _MOST_STRETCHED * min(height, width):
            raise PromptError(
                f"A picture has {width} x {height} pixels. Cut it: a model sees nothing in one whose sides"
                f" differ by more than {_MOST_STRETCHED} times."
            )
        match self.facts.size:
            case "square":
                return Layout(size=(self.square, self.square))
            case "edge":
                return Layout(size=within_edge(height, width, self.side, self.most))
            case "budget":
                return Layout(size=within_budget(height, width, self.side, self.rows))
            case "crop":
                return cropped(height, width, self.square)
            case "grid":
                return grid(height, width, self.square, self.rows)
            case "canvas":
                return canvas(height, width, self.square, self.rows)
            case "shapes":
                return shaped(height, width, self.square, self.side, self.shapes)
            case "split":
                return split(height, width, self.square, self.step, self.most, self.rows)
            case "frames":
                return Layout(size=as_frames(height, width, self.side, self.least, self.most))
            case "area":
                return Layout(size=within_area(height, width, self.side, self.least, self.most))

    def text(self, layout: Layout) -> str:
        """What stands in the prompt for a picture."""
        facts = self.facts
        if layout.filled is not None:
            return facts.token * self.rows_of(layout)
        if self.square and facts.size in ("grid", "canvas", "split"):
            tile = facts.token * (self.square // self.side) ** 2
            between, line, whole = facts.tiles
            rows, columns = layout.tiles
            lines = "".join(
                between.join(facts.tile.format(r, c) + tile for c in range(1, columns + 1)) + line
                for r in range(1, rows + 1)
            )
            lines = lines + facts.tiles_end if layout.has_whole else ""
            return f"{facts.opens}{lines}{whole}{tile}{facts.closes}"
        rows, columns = self.cells(*layout.pixels)
        lines = [facts.token * columns + facts.line_end] * rows
        return facts.opens + "".join(lines).removesuffix(facts.line_end) + facts.closes

    @property
    def has_rows_alone(self) -> bool:
        """Whether nothing but a token for each row stands in the prompt for a picture."""
        facts = self.facts
        return not (facts.opens or facts.line_end or facts.closes or any(facts.tiles))

    def rows_of(self, layout: Layout) -> int:
        """How many tokens stand for rows of a picture."""
        if layout.filled is not None:
            return len(self.order(layout))
        rows, columns = self.cells(*layout.pixels)
        return rows * columns

    def order(self, layout: Layout) -> tuple[int, ...]:
        """The number of the tower's row for each token that stands for one; empty: they are as the tower gives them.

        The whole picture comes first. Then come the lines of all tiles together, each with the row for a line's end.
        """
        if layout.filled is None:
            return ()
        tall, wide = layout.tiles
        each = layout.square // self.side
        numbers = np.arange((tall * wide + 1) * each * each)
        whole, end = numbers[tall * wide * each * each :], len(numbers)
        tiles = numbers[: len(numbers) - len(whole)].reshape(tall, wide, each, each)
        lines = tiles.transpose(0, 2, 1, 3).reshape(tall * each, wide * each)
        top, left, height, width = layout.filled
        shown = lines[top : top + height, left : left + width]
        ended = np.pad(shown, ((0, 0), (0, 1)), constant_values=end)
        return (*whole.tolist(), *ended.ravel().tolist())

    def cells(self, height: int, width: int) -> tuple[int, int]:
        """Lines of cells of pixels for the tower, and cells of each line."""
        return height // self.side, width // self.side


def picture_format(tower: TowerSpec | None, given: Mapping[str, object]) -> PictureFormat | None:
    """How a model takes pictures; None: it takes none.

    Args:
        tower: of the model; None: it has none that is known.
        given: what its `preprocessor_config.json` says; empty: there is none.

    Raises:
        InvalidConfigError: that file is damaged.
    """
    if tower is None or (facts := _FACTS.get(tower.name)) is None:
        return None
    fields = Fields(given, "preprocessor_config.json")
    size = fields.fields("size") if isinstance(fields.value("size"), Mapping) else Fields({})
    at_once = MOST_ROWS * tower.cell_side**2
    least = size.integer("shortest_edge", 1, 1 << 32, facts.least or 1)
    largest = size.integer("longest_edge", 1, 1 << 32, facts.most or at_once)
    return PictureFormat(
        facts=facts,
        side=tower.cell_side,
        square=tower.square,
        least=min(fields.integer("min_pixels", 1, 1 << 32, least), at_once),
        most=fields.integer("max_pixels", 1, 1 << 32, largest),
        rows=_rows(fields, facts, tower),
        shapes=tower.shapes,
        step=_step(fields, tower),
        resample=fields.integer("resample", 0, 5, facts.resample),
        **_normalisation(fields, facts),
    )


def _rows(fields: Fields, facts: PictureFacts, tower: TowerSpec) -> int:
    """Rows of a picture, or its tiles beside the one of the whole picture."""
    if facts.size == "budget":
        return fields.integer("max_soft_tokens", 1, MOST_ROWS, facts.rows)
    if facts.size == "split":
        is_split = fields.flag("do_image_splitting", True)
        return MOST_ROWS // tower.rows_at_once if is_split else 1
    if facts.size in ("grid", "canvas"):
        most = max(1, MOST_ROWS // tower.rows_at_once - 1)
        return min(most, fields.integer("max_patches", 1, 1 << 10, facts.rows))
    return MOST_ROWS


def _step(fields: Fields, tower: TowerSpec) -> int:
    """Pixels of a tile's side before those are left out that make no whole patch."""
    if not isinstance(fields.value("max_image_size"), Mapping) or not tower.square:
        return tower.square
    most, square = tower.square + tower.patch - 1, tower.square
    return fields.fields("max_image_size").integer("longest_edge", square, most, square)


class _Normalisation(TypedDict):
    mean: Levels
    deviation: Levels


def _normalisation(fields: Fields, facts: PictureFacts) -> _Normalisation:
    if not fields.flag("do_normalize", True):
        return {"mean": (0.0, 0.0, 0.0), "deviation": (1.0, 1.0, 1.0)}
    return {
        "mean": _levels(fields, "image_mean", facts.mean, low=-1e3),
        "deviation": _levels(fields, "image_std", facts.deviation, low=1e-6),
    }


def _levels(fields: Fields, name: str, default: Levels, *, low: float) -> Levels:
    if name not in fields:
        return default
    red, green, blue = fields.numbers(name, low, 1e3, 3)
    return red, green, blue
