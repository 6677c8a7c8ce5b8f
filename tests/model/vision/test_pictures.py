"""Sizes and texts of pictures are those of the processors of `transformers`."""

import pytest
from seeing_models import SEEING, TEXT

from potluck.errors import PromptError
from potluck.model.config import ModelConfig
from potluck.model.vision.pictures import PictureFormat, picture_format
from potluck.model.vision.spec import MOST_ROWS

NAMES = {
    "qwen 2.5": "Qwen2_5_VLForConditionalGeneration",
    "qwen 3.5": "Qwen3_5ForConditionalGeneration",
    "gemma 3": "Gemma3ForConditionalGeneration",
    "mistral 3": "Mistral3ForConditionalGeneration",
}
TYPES = {"qwen 2.5": "qwen2_5_vl_text", "qwen 3.5": "qwen3_5_text", "gemma 3": "gemma3_text"}


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
    form = picture_format(read.architecture, read.tower, given)
    assert form is not None
    return form


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (480, 640), (3000, 4000), (33, 32)])
def test_the_sizes_of_qwen_are_those_of_its_processor(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    form = form_of("qwen 2.5", min_pixels=1024, max_pixels=60000)

    assert form.size(*size) == smart_resize(*size, 8, 1024, 60000)


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (480, 640), (3000, 4000), (33, 32)])
def test_the_sizes_of_pixtral_are_those_of_its_processor(size: tuple[int, int]) -> None:
    import numpy as np
    from transformers.models.pixtral.image_processing_pil_pixtral import (
        get_resize_output_image_size,
    )

    form = form_of("mistral 3", size={"longest_edge": 200})
    image = np.empty((*size, 3), dtype=np.uint8)

    assert form.size(*size) == get_resize_output_image_size(image, 200, 8)


def test_no_picture_has_more_rows_than_a_laptop_bears() -> None:
    for variant in ("qwen 2.5", "qwen 3.5", "mistral 3"):
        rows, columns = form_of(variant).cells(*form_of(variant).size(4000, 5000))
        assert 0.75 * MOST_ROWS < rows * columns <= MOST_ROWS


def test_what_is_far_longer_than_wide_is_refused() -> None:
    with pytest.raises(PromptError, match="Cut it"):
        form_of("qwen 3.5").size(10, 2001)


def test_the_text_of_a_picture_has_a_token_for_each_row_of_the_tower() -> None:
    assert form_of("qwen 3.5").text(16, 24) == "<|image_pad|>" * 6
    assert form_of("mistral 3").text(16, 16) == "[IMG][IMG][IMG_BREAK][IMG][IMG][IMG_END]"
    gemma = form_of("gemma 3")
    assert gemma.size(480, 640) == (32, 32)
    rows = "<image_soft_token>" * 16
    assert gemma.text(32, 32) == f"\n\n<start_of_image>{rows}<end_of_image>\n\n"


def test_a_model_of_text_takes_no_pictures() -> None:
    config = ModelConfig.from_dict({"architectures": ["MistralForCausalLM"], **TEXT})
    assert picture_format(config.architecture, config.tower, {}) is None
