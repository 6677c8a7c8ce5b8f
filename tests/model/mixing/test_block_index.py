"""An indexer of blocks is read within bounds, and the cache of its layer has room for its keys."""

from typing import Any

import pytest

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.model.mixing.block_index import BlockIndexSpec
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.shapes.table import SHAPES

FLASH = SHAPES["qwen3.8-flash-next"]


def attention_of(config: ModelConfig) -> AttentionSpec:
    mixer = config.layers[3].mixer
    assert isinstance(mixer, AttentionSpec)
    return mixer


def index_of(**changes: Any) -> BlockIndexSpec:
    index = attention_of(ModelConfig.from_dict({**FLASH, **changes})).index
    assert isinstance(index, BlockIndexSpec)
    return index


def test_up_to_its_budget_and_an_unfinished_block_a_query_sees_all() -> None:
    index = index_of()

    assert (index.chosen, index.block) == (512, 4)
    assert index.dense_tokens == 2048 + 3


def test_its_tensors_have_the_names_and_shapes_of_the_files() -> None:
    config = ModelConfig.from_dict(FLASH)
    prefix = "model.layers.3.self_attn.indexer."

    assert {
        name.removeprefix(prefix): shape
        for name, shape in config.layer_tensors(3).items()
        if name.startswith(prefix)
    } == {
        "index_qk_proj.weight": (640, 2560),
        "q_layernorm.weight": (128,),
        "k_layernorm.weight": (128,),
    }


@pytest.mark.parametrize(("number_bytes", "nbytes"), [(4, 6 * 1024), (2, 6 * 512), (1, 6 * 260)])
def test_its_keys_are_cached_in_a_head_of_their_own(number_bytes: int, nbytes: int) -> None:
    cache = attention_of(ModelConfig.from_dict(FLASH)).cache(CacheSizes(number_bytes=number_bytes))

    assert cache.row.nbytes == nbytes  # keys and values of two heads of 256, and of one more


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"indexer_budget": None}, "indexer_budget"),
        ({"indexer_budget": 2050}, "indexer_budget"),
        ({"indexer_compress_ratio": 0}, "indexer_compress_ratio"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads"),
        ({"indexer_head_dim": 512}, "indexer_head_dim"),
        ({"indexer_head_dim": 32}, "indexer_head_dim"),
        ({"indexer_n_heads": 0}, "indexer_n_heads"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_the_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfigError, match=field):
        index_of(**changes)
