"""What attention to pools caches and reads, and which configs it has."""

from typing import Any

import pytest

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes, PooledCache
from potluck.model.config import ModelConfig
from potluck.model.footprint import stage_footprint
from potluck.model.mixing.pooled import PooledSpec

# `config.json` of deepseek-ai/DeepSeek-V4-Flash, what counts of it
FLASH: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
}
SIZES = CacheSizes(number_bytes=2)


def cache(config: ModelConfig, layer: int) -> PooledCache:
    spec = config.layers[layer].cache(SIZES)
    assert isinstance(spec, PooledCache)
    return spec


def test_flash_is_read_as_published() -> None:
    config = ModelConfig.from_dict(FLASH)

    assert [layer.mixer.pooler and layer.mixer.pooler.rate for layer in config.layers if isinstance(layer.mixer, PooledSpec)] == [
        None, None, *[4, 128] * 20, 4,
    ]  # fmt: skip
    assert [rope.theta for rope in config.ropes] == [10000.0, 160000.0]
    assert config.ropes[1].scaling is not None
    assert config.needs_ids([2])
    assert not config.needs_ids(range(3, 43))


def test_flash_takes_the_bytes_of_its_files_and_small_caches() -> None:
    config = ModelConfig.from_dict(FLASH)

    whole = stage_footprint(
        config, range(43), embedding=True, head=True, scheme="int8", context=32768
    )

    assert 150e9 < whole.weights < 165e9  # 284 billion numbers, most of 4.25 bits
    assert whole.cache < 500e6
    pools = {rate: cache(config, layer) for layer, rate in ((2, 4), (3, 128))}
    grown = {rate: one.nbytes(40_000) - one.nbytes(20_000) for rate, one in pools.items()}
    assert grown == {4: 20_000 // 4 * (512 + 128) * 2, 128: (40_000 // 128 - 20_000 // 128) * 1024}


def test_a_token_reads_its_window_and_the_chosen_pools() -> None:
    config = ModelConfig.from_dict(FLASH)
    chosen, few, plain = (cache(config, layer) for layer in (2, 3, 0))

    assert plain.read_bytes(10_000) == 128 * 1024
    assert few.read_bytes(12_800) == 128 * 1024 + 100 * 1024
    assert chosen.read_bytes(40_000) == (128 + 512) * 1024 + 10_000 * 256


@pytest.mark.parametrize("layer", [2, 3])
def test_a_trim_goes_where_the_tokens_of_the_open_pool_are(layer: int) -> None:
    spec = cache(ModelConfig.from_dict(FLASH), layer)
    held = spec.advance((900,), 2000, 100)

    assert spec.trim((1000,), 1127) == 1127
    assert spec.trim((1000,), 1126) == 0  # which looks at the token 999
    assert spec.trim((0,), 5) == 5
    assert spec.trim(held, 2000) == 2000


def test_of_a_small_window_the_pool_before_is_held_too() -> None:
    config = ModelConfig.from_dict(FLASH | {"sliding_window": 2})
    spec = cache(config, 2)

    assert (spec.window, spec.seen) == (8, 2)
    assert spec.trim((100,), 107) == 107  # whose pool is made of the tokens from 100 on
    assert spec.trim((101,), 107) == 0
    assert spec.trim(spec.advance((0,), 1999, 1), 1999) == 1999


@pytest.mark.parametrize("tokens", [0, 1, 127, 128, 1500, 1700, 40_000])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_rows_are_those_of_tokens_and_pools(layer: int, tokens: int) -> None:
    spec = cache(ModelConfig.from_dict(FLASH), layer)

    held, pools = spec.split(spec.rows(tokens))

    assert held == min(tokens, spec.window + 1024)
    assert pools == spec.pools(tokens)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_key_value_heads", 2),
        ("o_groups", 7),
        ("qk_rope_head_dim", 63),
        ("compress_ratios", [4, 8, *[0] * 41]),
        ("index_head_dim", 32),
        ("num_hash_layers", -1),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidConfigError, match=field):
        ModelConfig.from_dict(FLASH | {field: value})
