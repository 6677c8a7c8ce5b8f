"""What files of some families say in words of their own means what other files say in the usual ones."""

from typing import Any

import pytest
from config_layers import attention, layer_ropes, windows

from potluck.errors import InvalidConfigError
from potluck.model.config import ModelConfig
from potluck.model.layers import MoeSpec

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
FULL, WINDOWED = "full_attention", "sliding_attention"


def read(architecture: str, **fields: object) -> ModelConfig:
    return ModelConfig.from_dict({"architectures": [architecture], **SIZES, **fields})


def have_experts(config: ModelConfig) -> list[bool]:
    return [isinstance(layer.feed_forward, MoeSpec) for layer in config.layers]


STEP: dict[str, Any] = {
    "num_attention_groups": 2,
    "num_key_value_heads": None,
    "moe_num_experts": 6,
    "moe_top_k": 2,
    "layer_types": [FULL, WINDOWED, WINDOWED, FULL, WINDOWED],
    "attention_other_setting": {"attention_type": WINDOWED, "num_attention_heads": 12},
    "sliding_window": 9,
    "rope_theta": [5e6, 1e4, 1e4, 5e6, 1e4],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 1.0],
    "moe_layers_enum": "2,3",
    "swiglu_limits": [0.0, 0.0, 7.0, 7.0, 0.0],
}


def test_step_lists_what_differs_from_layer_to_layer_also_of_layers_that_guess() -> None:
    config = read("Step3p5ForCausalLM", **STEP)

    mixers = [attention(layer.mixer) for layer in config.layers]
    assert [mixer.heads for mixer in mixers] == [8, 12, 12, 8]
    assert [mixer.kv_heads for mixer in mixers] == [2] * 4
    assert windows(config) == (None, 9, 9, None)
    ropes = [config.ropes[rope] for rope in layer_ropes(config) if rope is not None]
    assert [(rope.theta, rope.dim) for rope in ropes] == [
        (5e6, 8),
        (1e4, 16),
        (1e4, 16),
        (5e6, 8),
    ]
    assert have_experts(config) == [False, False, True, True]


@pytest.mark.parametrize(
    "changes", [{"rope_theta": [1e4]}, {"moe_layers_enum": "2,three"}, {"moe_layers_enum": [-1]}]
)
def test_a_list_of_step_that_says_too_little_or_something_else_is_refused(
    changes: dict[str, object],
) -> None:
    with pytest.raises(InvalidConfigError):
        read("Step3p5ForCausalLM", **{**STEP, **changes})


def test_mimo_has_flags_of_layers_and_heads_of_those_with_windows() -> None:
    config = read(
        "MiMoV2FlashForCausalLM",
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 1, 1],
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        v_head_dim=8,
        swa_num_key_value_heads=4,
        layernorm_epsilon=1e-4,
        partial_rotary_factor=0.5,
    )

    mixers = [attention(layer.mixer) for layer in config.layers]
    assert [mixer.kv_heads for mixer in mixers] == [2, 4, 4, 2]
    assert [mixer.has_sinks for mixer in mixers] == [False, True, True, False]
    assert {mixer.value_dim for mixer in mixers} == {8}
    assert [config.ropes[rope or 0].theta for rope in layer_ropes(config)] == [5e6, 1e4, 1e4, 5e6]
    assert have_experts(config) == [False, True, True, True]
    assert config.layers[0].norm_eps == 1e-4


def test_minimax_says_in_an_object_which_layers_have_an_indexer() -> None:
    config = read(
        "MiniMaxM3VLForCausalLM",
        hidden_act="swigluoai",
        rotary_dim=8,
        moe_layer_freq=[0, 1, 1, 1],
        sparse_attention_config={
            "sparse_attention_freq": [0, 0, 1, 1],
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 16,
            "sparse_block_size": 4,
            "sparse_topk_blocks": 3,
        },
    )

    assert have_experts(config) == [False, True, True, True]
    indexes = [attention(layer.mixer).index for layer in config.layers]
    assert [index is not None for index in indexes] == [False, False, True, True]


def test_granite_lists_a_theta_for_each_layer_and_0_for_none() -> None:
    config = read("GraniteSWAForCausalLM", layer_rope_theta=[1000.0, 100.0, 0, 100])

    ropes = [None if rope is None else config.ropes[rope].theta for rope in layer_ropes(config)]
    assert ropes == [1000.0, 100.0, None, 100.0]
    assert windows(config) == (None, 128, 128, 128)
    assert layer_ropes(read("GraniteSWAForCausalLM")) == (0, 0, 0, 0)
    with pytest.raises(InvalidConfigError, match="layer_rope_theta"):
        read("GraniteSWAForCausalLM", layer_rope_theta=[1000.0])
