"""The hashes of n-grams are those of `transformers`, and what a config says of them is bounded."""

from typing import Any

import pytest
from transformers.models.qwen4_exp.modeling_qwen4_exp import (
    _build_layer_multipliers,
    _find_nth_prime_after,
)

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes, RecurrentCache
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint
from potluck.model.mixing.ngrams import NgramSpec
from potluck.model.shapes.table import SHAPES

FLASH = SHAPES["qwen3.8-flash-next"]
TABLE = 320_001_536  # rows of 160 numbers in Qwen3.8-Flash-Next, 128 tensors of 2,500,012


def config_with(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**FLASH, **changes})


def ngrams_of(config: ModelConfig) -> NgramSpec:
    (found,) = [layer.ngrams for layer in config.layers if layer.ngrams is not None]
    return found


def test_the_table_of_the_published_model_has_the_rows_that_its_files_have() -> None:
    spec = ngrams_of(config_with())

    shapes = list(dict(spec.table()).values())
    assert shapes == [(2_500_012, 160)] * 128
    assert spec.rows == TABLE
    # as its GGUF files say
    assert spec.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert ModelConfig.from_dict(FLASH).layers[1].ngrams == spec


@pytest.mark.parametrize("layer", [0, 1, 4])
def test_multipliers_and_primes_are_those_of_transformers(layer: int) -> None:
    config = config_with(ple_layer_ids=[1, 2, 3, 5, 6], ngram_vocab_size_base=1000, seed=77)
    spec = [one.ngrams for one in config.layers if one.ngrams is not None][layer]

    theirs = _build_layer_multipliers(config.vocab_size, 3, layer, 77)
    assert spec.multipliers == tuple(theirs.tolist())
    assert spec.sizes == tuple(
        _find_nth_prime_after(999, layer * 16 + head + 1) for head in range(16)
    )


def test_the_table_takes_no_memory_and_its_layer_keeps_the_last_ids() -> None:
    config = config_with()

    def weights(layer: int) -> int:
        return stage_footprint(
            config, [layer], embedding=False, head=False, scheme="bf16", context=64
        ).weights

    assert 0 < weights(1) - weights(0) < 100 << 20  # key_proj, value_proj and norms alone
    cache = config.layers[1].cache(CacheSizes(number_bytes=2))
    assert isinstance(cache, RecurrentCache)
    assert cache.row.shapes[2:] == ((2,), (9, 4 * 2560))


def test_ngrams_end_where_the_text_ends_whatever_a_larger_model_calls_its_end() -> None:
    whole = {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "eos_token_id": [5, 6],
        "text_config": {**FLASH, "model_type": "qwen4_exp_text", "eos_token_id": 9},
    }

    config = ModelConfig.from_dict(whole)

    assert config.eos_token_ids == (5, 6)
    assert ngrams_of(config).end == 9


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ple_layer_ids": [4]}, "linear attention"),
        ({"ple_layer_ids": [49]}, "ple_layer_ids"),
        ({"ple_embed_dim": 2561}, "ple_embed_dim"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"eos_token_id": 248320}, "eos_token_id"),
        ({"ngram_vocab_size_base": 1 << 40}, "ngram_vocab_size_base"),
        ({"split_ngram_parts": 1 << 20}, "split_ngram_parts"),
        ({"ngram_size": 9}, "ngram_size"),
        ({"ple_layer_ids": [1, 2], "heads_per_ngram": 320}, "ple_layer_ids"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_the_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfigError, match=field):
        config_with(**changes)
