"""Latent attention as configs say it: sizes, tensors, what is refused, and when it pays to expand."""

from typing import Any

import pytest

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.model.mixing.latent import LatentSpec
from potluck.model.shapes.table import SHAPES


def read(name: str = "deepseek-v2-lite", **changes: Any) -> tuple[ModelConfig, LatentSpec]:
    config = ModelConfig.from_dict({**SHAPES[name], **changes})
    mixer = config.layers[1].mixer
    assert isinstance(mixer, LatentSpec)
    return config, mixer


def test_deepseek_v2_lite_is_read_as_published() -> None:
    config, mixer = read()

    tensors = config.layer_tensors(1)
    prefix = "model.layers.1.self_attn."
    assert {name: shape for name, shape in tensors.items() if name.startswith(prefix)} == {
        f"{prefix}q_proj.weight": (3072, 2048),
        f"{prefix}kv_a_proj_with_mqa.weight": (576, 2048),
        f"{prefix}kv_a_layernorm.weight": (512,),
        f"{prefix}kv_b_proj.weight": (4096, 512),
        f"{prefix}o_proj.weight": (2048, 2048),
    }
    # yarn: (0.1 · 0.707 · ln 40 + 1)² / √192
    assert mixer.scale == pytest.approx(0.11472, rel=1e-4)
    assert config.ropes[0].dim == 64


def test_queries_may_have_a_latent_of_their_own() -> None:
    _, mixer = read("glm-4.7-flash")

    shapes = {
        part: rows
        for one in mixer.projections
        for part, rows in zip(one.parts, one.rows, strict=True)
    }
    assert shapes["self_attn.q_a_proj"] == 768
    assert shapes["self_attn.q_b_proj"] == 20 * 256
    assert mixer.small_tensors["self_attn.q_a_layernorm.weight"] == (768,)


@pytest.mark.parametrize(("number_bytes", "nbytes"), [(2, 1152), (1, 584)])
def test_a_row_of_the_cache_is_the_latent_and_one_key(number_bytes: int, nbytes: int) -> None:
    _, mixer = read()

    assert mixer.cache(CacheSizes(number_bytes=number_bytes)).row.nbytes == nbytes


def test_to_expand_pays_from_so_many_tokens() -> None:
    _, mixer = read()
    from_tokens = mixer.expands_from

    absorbed = 2 * mixer.rank + mixer.rotary_dim  # products of a query and a cached row
    own = mixer.query_dim + mixer.value_dim
    expanding = mixer.rank * (mixer.plain_dim + mixer.value_dim)  # of a cached row
    assert from_tokens * absorbed >= from_tokens * own + expanding
    assert (from_tokens - 1) * absorbed < (from_tokens - 1) * own + expanding


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim"),
        ({"attention_bias": True}, "attention_bias"),
        ({"kv_lora_rank": 1 << 20}, "kv_lora_rank"),
        ({"topk_method": "noaux_tc"}, "topk_method"),
        ({"topk_method": "group_limited_greedy", "n_group": 5}, "n_group"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read(**changes)

    assert caught.value.data["field"] == field


SPARSE = {"architectures": ["GlmMoeDsaForCausalLM"], "q_lora_rank": 768}


def test_an_indexer_adds_its_keys_to_the_cache_and_has_a_token_read_those_and_the_chosen_rows() -> (
    None
):
    config, spec = read(**SPARSE, index_topk=1024, index_head_dim=128)
    cache = spec.cache(CacheSizes(number_bytes=2))

    assert config.max_position == 163840
    assert cache.nbytes(5000) == 5000 * 2 * (512 + 64 + 128)
    assert cache.read_bytes(1000) == 1000 * 2 * (512 + 64)
    assert cache.read_bytes(5000) == 5000 * 2 * 128 + 1024 * 2 * (512 + 64)


@pytest.mark.parametrize(
    "shares",
    [
        {
            "indexer_types": ["full"]
            + ["shared"] * 3
            + (["full"] + ["shared"] * 3) * 5
            + ["full"] * 3
        },
        {"index_topk_pattern": "FSSS" * 6 + "FFF"},
    ],
)
def test_layers_may_see_what_an_earlier_one_has_chosen(shares: dict[str, Any]) -> None:
    config, spec = read(**SPARSE, index_topk=1024, **shares)

    assert [config.follows(layer) for layer in range(5)] == [None, 1024, 1024, 1024, None]
    assert spec.indexer is None
    assert not any("indexer" in name for name in config.layer_tensors(1))
    assert spec.cache(CacheSizes(number_bytes=2)).read_bytes(5000) == 1024 * 2 * (512 + 64)


def test_the_layers_with_an_indexer_may_be_given_by_how_many_lie_between_them() -> None:
    config, _ = read(**SPARSE, index_topk=1024, index_topk_freq=4, index_skip_topk_offset=3)

    follow = [config.follows(layer) is not None for layer in range(9)]
    assert follow == [False] * 3 + [True] * 3 + [False] + [True] * 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"index_head_dim": 32}, "index_head_dim"),
        ({"index_topk": 0}, "index_topk"),
        ({"index_topk": 1 << 20}, "index_topk"),
        ({"index_n_heads": 1 << 20}, "index_n_heads"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"indexer_types": ["full"]}, "indexer_types"),
        ({"indexer_types": ["shared"] * 27}, "indexer_types"),
        ({"index_topk_pattern": "FX"}, "index_topk_pattern"),
    ],
)
def test_an_indexer_that_makes_no_sense_is_refused_by_its_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read(**{**SPARSE, **changes})

    assert caught.value.data["field"] == field
