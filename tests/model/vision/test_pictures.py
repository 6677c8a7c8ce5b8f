"""Sizes and texts of pictures are those of the processors of `transformers`."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from seeing_models import SEEING, TEXT

from potluck.errors import PromptError
from potluck.model.config import ModelConfig
from potluck.model.vision.layouts import Layout
from potluck.model.vision.pictures import PictureFormat, picture_format
from potluck.model.vision.spec import MOST_ROWS

NAMES = {
    "qwen 2.5": "Qwen2_5_VLForConditionalGeneration",
    "qwen 3.5": "Qwen3_5ForConditionalGeneration",
    "gemma 3": "Gemma3ForConditionalGeneration",
    "mistral 3": "Mistral3ForConditionalGeneration",
    "gemma 4": "Gemma4ForConditionalGeneration",
    "light on ocr": "LightOnOcrForConditionalGeneration",
    "pixtral": "LlavaForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "llava next": "LlavaNextForConditionalGeneration",
    "glm 4": "Glm4vForConditionalGeneration",
    "idefics 3": "Idefics3ForConditionalGeneration",
    "internvl": "InternVLForConditionalGeneration",
    "llama 4": "Llama4ForConditionalGeneration",
}
TYPES = {
    "qwen 2.5": "qwen2_5_vl_text",
    "qwen 3.5": "qwen3_5_text",
    "gemma 3": "gemma3_text",
    "gemma 4": "gemma4_text",
    "glm 4": "glm4v_text",
    "idefics 3": "llama",
    "internvl": "qwen3",
    "light on ocr": "qwen3",
    "llama 4": "llama4_text",
    "llava": "llama",
}
SIZES = [(1, 1), (7, 300), (300, 7), (480, 640), (641, 479), (3000, 4000), (33, 32), (90, 61)]


def form_of(variant: str, **given: object) -> PictureFormat:
    _, text, eye, whole = SEEING[variant]
    fields = TEXT | text | {"model_type": TYPES.get(variant, "mistral")}
    config = {
        "architectures": [NAMES[variant]],
        "text_config": {name: value for name, value in fields.items() if value is not None},
        "vision_config": eye,
        **whole,
    }
    read = ModelConfig.from_dict(config)
    form = picture_format(read.tower, given)
    assert form is not None
    return form


def text_of(variant: str, height: int, width: int) -> str:
    return form_of(variant).text(Layout(size=(height, width)))


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (480, 640), (3000, 4000), (33, 32)])
def test_the_sizes_of_qwen_are_those_of_its_processor(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    form = form_of("qwen 2.5", min_pixels=1024, max_pixels=60000)

    assert form.layout(*size).pixels == smart_resize(*size, 8, 1024, 60000)


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (480, 640), (3000, 4000), (33, 32)])
def test_the_sizes_of_pixtral_are_those_of_its_processor(size: tuple[int, int]) -> None:
    import numpy as np
    from transformers.models.pixtral.image_processing_pil_pixtral import (
        get_resize_output_image_size,
    )

    form = form_of("mistral 3", size={"longest_edge": 200})
    image = np.empty((*size, 3), dtype=np.uint8)

    assert form.layout(*size).pixels == get_resize_output_image_size(image, 200, 8)


@pytest.mark.parametrize("size", [*SIZES, (5, 4), (7, 8), (8, 7)])
@pytest.mark.parametrize("edges", [(512, 20000), (64, 1024), (1 << 14, 1 << 18)])
def test_the_sizes_of_glm_4_are_those_of_its_processor(
    size: tuple[int, int], edges: tuple[int, int]
) -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    least, most = edges
    form = form_of("glm 4", size={"shortest_edge": least, "longest_edge": most})

    theirs = smart_resize(2, *size, factor=8, min_pixels=least, max_pixels=most)
    assert form.layout(*size).pixels == theirs


@pytest.mark.parametrize("size", SIZES)
def test_the_sizes_of_gemma_4_are_those_of_its_processor(size: tuple[int, int]) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import (
        get_aspect_ratio_preserving_size,
    )

    form = form_of("gemma 4", max_soft_tokens=70)

    assert form.layout(*size).pixels == get_aspect_ratio_preserving_size(*size, 4, 70 * 9, 3)


@pytest.mark.parametrize("size", SIZES)
def test_the_tiles_of_internvl_are_those_of_its_processor(size: tuple[int, int]) -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    form = form_of("internvl")
    columns, rows = get_optimal_tiled_canvas(size, (32, 32), 1, 12)
    layout = form.layout(*size)

    assert layout.tiles == (rows, columns)
    assert layout.size == (rows * 32, columns * 32)
    count = rows * columns + (rows * columns > 1)
    assert layout.pixels == (count * 32, 32)
    assert form.text(layout) == "<img>" + "<IMG_CONTEXT>" * 16 * count + "</img>"


@pytest.mark.parametrize(
    ("size", "frame", "resized"),
    [
        ((1, 1), (32, 32), (32, 32)),
        ((7, 300), (32, 320), (7, 300)),
        ((641, 479), (160, 96), (128, 96)),
        ((3000, 4000), (96, 128), (96, 128)),
        ((33, 32), (64, 32), (33, 32)),
        ((50, 100), (64, 128), (50, 100)),
        ((65, 31), (96, 32), (65, 31)),
        ((97, 333), (64, 224), (64, 219)),
    ],
)
def test_the_tiles_of_llama_4_are_those_of_its_processor(
    size: tuple[int, int], frame: tuple[int, int], resized: tuple[int, int]
) -> None:
    """The values are what `get_best_fit` and `get_max_res_without_distortion` give, whose module needs torchvision."""
    layout = form_of("llama 4").layout(*size)

    assert (layout.frame, layout.size) == (frame, resized)
    assert layout.tiles == (frame[0] // 32, frame[1] // 32)


def test_the_text_of_llama_4_names_tiles_lines_and_the_whole() -> None:
    form, tile = form_of("llama 4"), "<|patch|>" * 16
    line = f"{tile}<|tile_x_separator|>{tile}<|tile_y_separator|>"

    assert form.text(form.layout(20, 20)) == f"<|image_start|><|image|>{tile}<|image_end|>"
    assert form.layout(60, 60).pixels == (5 * 32, 32)
    two = f"<|image_start|>{line}{line}<|image|>{tile}<|image_end|>"
    assert form.text(form.layout(60, 60)) == two


@pytest.mark.parametrize("size", [*SIZES, (16, 25), (25, 16), (64, 1), (1, 90), (24, 24), (17, 31)])
def test_the_shapes_and_the_rows_of_llava_next_are_those_of_its_processor(
    size: tuple[int, int],
) -> None:
    import torch
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_next.configuration_llava_next import LlavaNextConfig
    from transformers.models.llava_next.modeling_llava_next import LlavaNextModel

    form, layout = form_of("llava next"), form_of("llava next").layout(*size)
    shapes = [[16, 32], [32, 16], [32, 32]]
    assert layout.frame == select_best_resolution(size, shapes)
    tall, wide = layout.tiles
    assert layout.pixels == ((tall * wide + 1) * 16, 16)

    # Each row holds its number, and the whole picture, which is last here, comes first there.
    rows = torch.arange(16.0 * (tall * wide + 1)).view(-1, 16, 1)
    eye = {"model_type": "clip_vision_model", "image_size": 16, "patch_size": 4}
    config = LlavaNextConfig(vision_config=eye, image_grid_pinpoints=shapes)
    packed, _ = LlavaNextModel.pack_image_features(
        cast("Any", SimpleNamespace(config=config)),  # all that it looks at
        [rows.roll(1, 0)],
        [size],
        "default",
        image_newline=torch.tensor([16.0 * (tall * wide + 1)]),
    )
    assert list(form.order(layout)) == packed[0][:, 0].int().tolist()
    assert form.text(layout) == "<image>" * len(packed[0])


def test_shapes_of_more_rows_than_a_laptop_bears_are_left_out() -> None:
    config = {
        "architectures": ["LlavaNextForConditionalGeneration"],
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": SEEING["llava next"][2],
    }
    squares = [[16 * tall, 16] for tall in (1, 12, 16, 17, 40)]

    tower = ModelConfig.from_dict(config | {"image_grid_pinpoints": squares}).tower

    assert tower is not None
    assert tower.shapes == ((1, 1), (12, 1), (16, 1))
    for none in ([], squares[3:], [[16, 24]], [[16]], "all", [[16, 1 << 20]], [[0, 16]]):
        read = ModelConfig.from_dict(config | {"image_grid_pinpoints": none})
        assert read.tower is None


@pytest.mark.parametrize("size", [*SIZES, (64, 64), (1, 90), (136, 137), (500, 499)])
def test_the_tiles_and_the_text_of_idefics_3_are_those_of_its_processor(
    size: tuple[int, int],
) -> None:
    import numpy as np
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    edges: dict[str, Any] = {
        "size": {"longest_edge": 200},
        "max_image_size": {"longest_edge": 34},
    }
    form = form_of("idefics 3", **edges)
    layout = form.layout(*size)
    processor: Any = Idefics3ImageProcessorPil(**edges, return_row_col_info=True)
    found = processor([[np.zeros((3, *size), np.uint8)]])

    rows, columns = found["rows"][0][0], found["cols"][0][0]
    assert layout.tiles == (rows, columns)
    assert layout.pixels == ((rows * columns + 1) * 32, 32)
    names = {
        "fake_image_token": "<fake_token_around_image>",
        "global_image_tag": "<global-img>",
        "image_token": "<image>",
        "image_seq_len": 16,
    }
    told = cast("Any", SimpleNamespace(**names))  # all that it looks at
    assert form.text(layout) == Idefics3Processor.replace_image_token(told, found, 0)
    assert form.rows_of(layout) == form.text(layout).count("<image>")


def test_a_picture_of_idefics_3_is_cut_in_fewer_tiles_where_these_are_too_many_or_in_none() -> None:
    form = form_of("idefics 3", size={"longest_edge": 4000}, max_image_size={"longest_edge": 34})

    layout = form.layout(1000, 1000)

    assert 0.8 * MOST_ROWS < form.rows_of(layout) <= MOST_ROWS
    whole = form_of("idefics 3", do_image_splitting=False)
    assert whole.layout(1000, 500).pixels == (32, 32)
    tile = "<image>" * 16
    assert whole.text(whole.layout(1000, 500)) == (
        f"<fake_token_around_image><global-img>{tile}<fake_token_around_image>"
    )


def test_no_picture_has_more_rows_than_a_laptop_bears() -> None:
    for variant in ("qwen 2.5", "qwen 3.5", "mistral 3", "pixtral"):
        rows, columns = form_of(variant).cells(*form_of(variant).layout(4000, 5000).pixels)
        assert 0.75 * MOST_ROWS < rows * columns <= MOST_ROWS


def test_what_is_far_longer_than_wide_is_refused() -> None:
    with pytest.raises(PromptError, match="Cut it"):
        form_of("qwen 3.5").layout(10, 2001)


def test_the_text_of_a_picture_has_a_token_for_each_row_of_the_tower() -> None:
    assert text_of("qwen 3.5", 16, 24) == "<|image_pad|>" * 6
    assert text_of("light on ocr", 16, 24) == "<|image_pad|>" * 6
    assert text_of("mistral 3", 16, 16) == "[IMG][IMG][IMG_BREAK][IMG][IMG][IMG_END]"
    gemma = form_of("gemma 3")
    assert gemma.layout(480, 640).pixels == (32, 32)
    rows = "<image_soft_token>" * 16
    assert gemma.text(gemma.layout(32, 32)) == f"\n\n<start_of_image>{rows}<end_of_image>\n\n"


def test_a_model_of_text_takes_no_pictures() -> None:
    config = ModelConfig.from_dict({"architectures": ["MistralForCausalLM"], **TEXT})
    assert picture_format(config.tower, {}) is None
