"""Which layers turn their heads, how fast, and what a config may say of it."""

import pytest
from config_layers import layer_ropes

from potluck.errors import InvalidConfigError
from potluck.model.config import ModelConfig
from potluck.model.mixing.rope import (
    DynamicScaling,
    LinearScaling,
    LongScaling,
    Rope,
    Ropes,
    YarnScaling,
)

SIZES: dict[str, object] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}


def ropes(architecture: str, **changes: object) -> Ropes:
    config = ModelConfig.from_dict(SIZES | {"architectures": [architecture]} | changes)
    return Ropes(distinct=config.ropes, layers=layer_ropes(config))


def test_gemma_3_turns_local_layers_by_a_theta_of_their_own_as_published() -> None:
    published = ropes(
        "Gemma3ForCausalLM",
        rope_theta=1000000.0,
        rope_local_base_freq=10000.0,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
        sliding_window=512,
        sliding_window_pattern=2,
    )

    assert published.distinct == (
        Rope(dim=16, theta=1e6, scaling=LinearScaling(factor=8.0)),
        Rope(dim=16, theta=1e4),
    )
    assert published.layers == (1, 0, 1, 0)


def test_gemma_3_as_transformers_5_writes_it_is_the_same() -> None:
    written = ropes(
        "Gemma3ForCausalLM",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
        },
        layer_types=["full_attention"] * 3 + ["sliding_attention"],
    )

    assert written.distinct == (
        Rope(dim=16, theta=1e6, scaling=LinearScaling(factor=8.0)),
        Rope(dim=16, theta=5e3),
    )
    assert written.layers == (0, 0, 0, 1)


def test_some_layers_have_no_rotary() -> None:
    assert ropes("SmolLM3ForCausalLM").layers == (0, 0, 0, None)
    assert ropes("SmolLM3ForCausalLM", no_rope_layers=[0, 1, 1, 0]).layers == (None, 0, 0, None)
    assert ropes("SmolLM3ForCausalLM", no_rope_layer_interval=2).layers == (0, None, 0, None)


def test_exaone_4_turns_local_layers_alone_or_all_where_it_has_no_window() -> None:
    assert ropes("Exaone4ForCausalLM", sliding_window_pattern="LLLG").layers == (0, 0, 0, None)
    assert ropes("Exaone4ForCausalLM", sliding_window=None).layers == (0, 0, 0, 0)
    assert ropes("Exaone4ForCausalLM", sliding_window_pattern=1).layers == (None,) * 4


def test_phi_turns_a_part_of_a_head_and_calls_longrope_by_old_names() -> None:
    parameters = {"short_factor": [1.0] * 6, "long_factor": [2] * 6}
    for name in ("su", "longrope", "yarn"):
        (rope,) = ropes(
            "Phi3ForCausalLM",
            partial_rotary_factor=0.75,
            rope_scaling=parameters | {"type": name},
            original_max_position_embeddings=1024,
        ).distinct

        assert rope.dim == 12
        assert isinstance(rope.scaling, LongScaling)
        assert rope.scaling.long == (2.0,) * 6
        assert rope.scaling.original_max_position == 1024
        # √(1 + ln 4 / ln 1024)
        assert rope.scaling.attention_factor == pytest.approx(1.2**0.5)


def test_yarn_of_qwen_2_5_is_read_under_its_old_name() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    (rope,) = ropes("Qwen2ForCausalLM", rope_scaling=scaling).distinct

    assert isinstance(rope.scaling, YarnScaling)
    assert (rope.scaling.factor, rope.scaling.original_max_position) == (4.0, 32768)
    assert rope.scaling.attention_factor == pytest.approx(1.1386, abs=1e-4)


def test_dynamic_scaling_begins_where_positions_end() -> None:
    (rope,) = ropes("LlamaForCausalLM", rope_scaling={"type": "dynamic", "factor": 2}).distinct

    assert rope.scaling == DynamicScaling(factor=2.0, original_max_position=4096)


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.2}, "even part"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "su"}}, "short_factor"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
            "8 entries",
        ),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "su", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}},
            "short_factor.0",
        ),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "spiral"}}, "linear, llama3, dynamic"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 0}}, "factor"),
        (
            "Qwen2ForCausalLM",
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 1}},
            "original_max_position_embeddings",
        ),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 1, 1]}, "each of 4 layers"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [2] * 4}, "no_rope_layers"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    architecture: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        ropes(architecture, **changes)
