"""A model that is stored quantised is held in as few bits, and as exactly, as can be."""

import dataclasses
import re

import pytest
from model_folders import CONFIG

from potluck.model.config import ModelConfig
from potluck.model.nearest import explain_more_bits, nearest_schemes
from potluck.model.quantized import Quantization
from potluck.model.schemes import Scheme

FOUR: tuple[Scheme, ...] = ("int4-head8", "int4")
EIGHT: tuple[Scheme, ...] = ("int8", "int4-head8", "int4")
OFFSETS: tuple[Scheme, ...] = ("int4-offset", "int4-head8", "int4")


@pytest.mark.parametrize(
    ("stored", "nearest"),
    [
        (None, ()),
        (Quantization(method="gptq", bits=4, group_size=128), FOUR),
        (Quantization(method="gptq", bits=4, group_size=128, is_symmetric=False), OFFSETS),
        (Quantization(method="gptq", bits=4, group_size=128, is_reordered=True), EIGHT),
        (
            Quantization(
                method="gptq", bits=4, group_size=128, is_reordered=True, is_symmetric=False
            ),
            EIGHT,
        ),
        (Quantization(method="gptq", bits=4, group_size=16, is_symmetric=False), EIGHT),
        (Quantization(method="gptq", bits=4, is_symmetric=False), OFFSETS),  # of whole rows
        (Quantization(method="gptq", bits=8, group_size=128), EIGHT),
        (Quantization(method="gptq", bits=8, group_size=128, is_symmetric=False), EIGHT),
        (Quantization(method="awq", bits=4, group_size=128, is_symmetric=False), OFFSETS),
        (Quantization(method="packed", bits=4, group_size=128, is_symmetric=False), OFFSETS),
        (Quantization(method="packed", bits=4, group_size=128), FOUR),
        (Quantization(method="fp8"), EIGHT),
        (Quantization(method="integers"), EIGHT),
        (Quantization(method="gguf", bits=4), FOUR),
        (Quantization(method="gguf", bits=4, is_symmetric=False), OFFSETS),
        (Quantization(method="gguf", bits=4, is_symmetric=False, is_affine=False), EIGHT),
        (Quantization(method="gguf", bits=2, is_symmetric=False), FOUR),
        (Quantization(method="gguf", bits=3, is_symmetric=False), FOUR),
        (Quantization(method="gguf", bits=16), ()),
    ],
)
def test_the_nearest_scheme_comes_first(
    stored: Quantization | None, nearest: tuple[Scheme, ...]
) -> None:
    config = dataclasses.replace(ModelConfig.from_dict(CONFIG), quantization=stored)

    assert nearest_schemes(config) == nearest


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (
            Quantization(method="gguf", bits=4, is_symmetric=False, is_affine=False),
            r"4 bits \(GGUF\)",
        ),
        (Quantization(method="gguf", bits=6, is_symmetric=False), r"6 bits \(GGUF\)"),
        (Quantization(method="awq", bits=4, group_size=16, is_symmetric=False), r"\(AWQ\)"),
        (
            Quantization(method="packed", bits=4, group_size=24, is_symmetric=False),
            r"\(compressed-tensors\)",
        ),
        (Quantization(method="gptq", bits=4, is_reordered=True), "do not stand side by side"),
    ],
)
def test_more_bits_than_are_stored_are_explained(stored: Quantization, words: str) -> None:
    config = dataclasses.replace(ModelConfig.from_dict(CONFIG), quantization=stored)

    text = explain_more_bits(config)
    assert re.search(f"{words}.*held in 8 .scheme int8.*4 bits .scheme int4", text)
    assert ("side by side" in text) == stored.is_reordered


@pytest.mark.parametrize(
    "stored",
    [
        None,
        Quantization(method="gptq", bits=4, group_size=128),
        Quantization(method="gptq", bits=8, is_symmetric=False),
        Quantization(method="gptq", bits=4, group_size=128, is_symmetric=False),
        Quantization(method="gguf", bits=4, is_symmetric=False),
        Quantization(method="fp8"),
        Quantization(method="gguf", bits=2, is_symmetric=False),
        Quantization(method="gguf", bits=16),
    ],
)
def test_as_many_bits_as_are_stored_need_no_word(stored: Quantization | None) -> None:
    config = dataclasses.replace(ModelConfig.from_dict(CONFIG), quantization=stored)

    assert not explain_more_bits(config)
