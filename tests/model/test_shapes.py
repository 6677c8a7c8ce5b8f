from math import prod

import pytest

from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES

PARAMETERS = {  # in billions, as their makers say
    "llama-1b": 1.24,
    "llama-3b": 3.21,
    "llama-8b": 8.03,
    "llama-70b": 70.6,
    "qwen-0.5b": 0.49,
    "qwen-7b": 7.62,
    "qwen3-30b-a3b": 30.5,
    "glm-4.5-air": 106.85,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "deepseek-v2-lite": 15.7,
    "glm-4.7-flash": 30,
    "qwen3-next-80b-a3b": 79.7,
    "qwen3.6-27b": 26.9,
    "llama-4-scout": 107.8,
    "qwen3.8-flash-next": 177,
    "nemotron-3-nano-30b-a3b": 31.6,
    "deepseek-v4-flash": 284,
    "minimax-m3": 426,  # its text
    "glm-5.3-flash": 313,  # likewise
    "gemma-4-e2b": 4.63,  # 2.3 without its table
    "gemma-4-26b-a4b": 25.2,
    "gemma-4-31b": 30.7,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_a_model_of_as_many_parameters_as_it_is_known_for(name: str) -> None:
    config = ModelConfig.from_dict(SHAPES[name])

    tensors = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
    parameters = sum(map(prod, tensors.values()))
    assert parameters / 1e9 == pytest.approx(PARAMETERS[name], rel=0.01)
