"""Which families the fast tier has: one for each kind of layer. One takes a second, most of it for its kernels."""

from collections.abc import Iterable

import pytest

FAST = (
    "llama, biases",
    "gemma 2",
    "qwen 3 moe",
    "gpt-oss",
    "deepseek 2 lite",
    "qwen 3.5",
    "granite 4",
)


def each_of(variants: Iterable[str]) -> pytest.MarkDecorator:
    """The test is run with each variant; with most of them it is slow."""
    marked = [pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in variants]
    return pytest.mark.parametrize("variant", marked)
