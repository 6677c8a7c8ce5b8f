"""Which families the fast tier has, and which are enough for all that kernels are written for.

A family takes a second, most of it for its kernels.
"""

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
# All that kernels are written for in any family (`tests/engine/test_fast_families.py`): every kind of mixer, of norms,
# gates, routing, activation, of what turns or is scaled, and heads that share keys or do not.
GENERATED = (
    *FAST,
    "gemma 2, one key head, odd",
    "gemma 4, experts",
    "gemma 4 e2b",
    "gemma 4, embeddings of layers alone",
    "olmo 2, no shared key heads, bias",
    "muse glimmer, text of a model with pictures",
    "llama 4 scout",
    "command a+",
    "phi 3",
    "glm 5.2",
    "deepseek 3.2",
    "kimi linear",
    "qwen 3 next",
    "nemotron h, narrow experts",
    "nemotron h, dense, biases",
    "falcon h1",
    "falcon h1, normed",
    "step 3.7, text of a model with pictures",
    "lfm 2",
    "mimo 2 flash",
    "minimax m3, text of a model with pictures",
    "kolibri 1",
    "laguna",
    "apertus",
    "starcoder 2",
    "phi 3.5 moe",
    "glm 5.3, text of a model with pictures",
    "deepseek 4",
)
# With these, every value of every field of a layer's specification, and every name of a tensor (likewise).
SPECIFIED = (
    *GENERATED,
    "granite 4, dense, groups, rope",
    "phi 2",
    "qwen 4, n-grams",
    "ernie 4.5 moe",
    "hunyuan a13b",
    "hy 3",
    "hyperclova x",
    "glm 4",
    "granite moe, windows",
    "trinity",
    "flint",
    "a.x k1",
    "lfm 3",
)


def each_of(variants: Iterable[str]) -> pytest.MarkDecorator:
    """The test is run with each variant; with most of them it is slow."""
    marked = [pytest.param(one, marks=() if one in FAST else pytest.mark.slow) for one in variants]
    return pytest.mark.parametrize("variant", marked)
