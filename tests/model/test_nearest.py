"""A model that is stored quantised is held in as few bits, and as exactly, as can be."""

import dataclasses

import pytest
from model_folders import CONFIG

from potluck.model.config import ModelConfig
from potluck.model.nearest import nearest_schemes
from potluck.model.quantized import Quantization
from potluck.model.schemes import Scheme

FOUR: tuple[Scheme, ...] = ("int4-head8", "int4")
EIGHT: tuple[Scheme, ...] = ("int8", "int4-head8", "int4")


@pytest.mark.parametrize(
    ("stored", "nearest"),
    [
        (None, ()),
        (Quantization(method="gptq", bits=4, group_size=128), FOUR),
        (Quantization(method="gptq", bits=4, group_size=128, is_symmetric=False), EIGHT),
        (Quantization(method="gptq", bits=4, group_size=128, is_reordered=True), EIGHT),
        (Quantization(method="gptq", bits=8, group_size=128), EIGHT),
        (Quantization(method="awq", bits=4, group_size=128, is_symmetric=False), EIGHT),
        (Quantization(method="packed", bits=4, group_size=128), FOUR),
        (Quantization(method="fp8"), EIGHT),
        (Quantization(method="integers"), EIGHT),
        (Quantization(method="gguf", bits=4), FOUR),
        (Quantization(method="gguf", bits=4, is_symmetric=False), EIGHT),
        (Quantization(method="gguf", bits=2, is_symmetric=False), FOUR),
        (Quantization(method="gguf", bits=16), ()),
    ],
)
def test_the_nearest_scheme_comes_first(
    stored: Quantization | None, nearest: tuple[Scheme, ...]
) -> None:
    config = dataclasses.replace(ModelConfig.from_dict(CONFIG), quantization=stored)

    assert nearest_schemes(config) == nearest
