"""What a GGUF file says becomes the config that the model had."""

from typing import Any

import pytest
from config_layers import attention, windows
from gguf_configs import read_gguf

from potluck.errors import InvalidConfigError, UnknownArchitectureError
from potluck.model.gguf.config import read_gguf_config
from potluck.model.gguf.keys import GgufFile
from potluck.model.layers import DenseSpec
from potluck.model.mixing.rope import LinearScaling, LongScaling, YarnScaling


def test_sizes_are_read_and_numbers_of_f32_in_the_digits_they_were_written_in() -> None:
    raw, config = read_gguf()

    assert raw["architectures"] == ["LlamaForCausalLM"]
    assert (config.vocab_size, config.hidden_size) == (320, 64)
    layer = config.layers[0]
    mixer = attention(layer.mixer)
    assert (config.num_layers, mixer.heads, mixer.kv_heads) == (4, 4, 2)
    assert isinstance(layer.feed_forward, DenseSpec)
    assert layer.feed_forward.down.width == 96
    assert (config.head_dim, config.max_position) == (16, 4096)
    assert raw["rms_norm_eps"] == 1e-5
    assert config.ropes[0].theta == 500000.0
    assert config.tie_word_embeddings


def test_a_head_of_its_own_and_biases_are_seen_by_their_tensors() -> None:
    shapes = {"output.weight": (320, 64), "blk.0.attn_q.bias": (64,), "blk.0.ffn_up.bias": (96,)}

    _, config = read_gguf(shapes=shapes)

    assert not config.tie_word_embeddings
    assert [part.has_bias for part in config.layers[0].projections] == [True] * 4


def test_ends_are_those_of_the_file_and_what_is_named_so() -> None:
    tokenizer: dict[str, object] = {
        "eos_token_id": 1,
        "eot_token_id": 4,
        "tokens": ["a", "</s>", "<|im_end|>", "<|end|>", "b", "<end_of_turn>"],
    }

    _, config = read_gguf(tokenizer=tokenizer)

    assert config.eos_token_ids == (1, 2, 3, 4, 5)


def test_the_end_of_a_message_is_not_that_of_an_answer_of_several_messages() -> None:
    tokenizer: dict[str, object] = {
        "tokens": ["a", "<|return|>", "<|end|>", "<|call|>", "<|endoftext|>"],
        "eos_token_id": 1,
        "eot_token_id": 2,
    }

    _, config = read_gguf(tokenizer=tokenizer)

    assert config.eos_token_ids == (1, 3, 4)


def test_factors_of_frequencies_hold_at_every_length() -> None:
    factors = tuple(float(i + 1) for i in range(8))

    _, config = read_gguf(factors={"rope_freqs.weight": factors})

    assert config.ropes[0].scaling == LongScaling(
        short=factors,
        long=factors,
        original_max_position=4096,
        attention_factor=1.0,
        long_attention_factor=1.0,
    )


def test_long_factors_are_those_of_phi() -> None:
    short, long = (1.0,) * 6, (2.5,) * 6
    factors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}

    _, config = read_gguf(
        "phi3",
        factors=factors,
        rope__dimension_count=12,
        rope__scaling__original_context_length=512,
        rope__scaling__attn_factor=1.19,
        attention__sliding_window=0,
    )

    (rope,) = config.ropes
    assert rope.dim == 12
    assert rope.scaling == LongScaling(
        short=short,
        long=long,
        original_max_position=512,
        attention_factor=1.19,
        long_attention_factor=1.19,
    )
    assert windows(config) == (None,) * 4
    assert attention(config.layers[0].mixer).is_fused


def test_a_window_of_phi_is_one_of_all_layers() -> None:
    _, config = read_gguf("phi3", attention__sliding_window=2047)

    assert windows(config) == (2047,) * 4


def test_other_scalings_are_read() -> None:
    yarn: dict[str, Any] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 1024,
        "rope__scaling__yarn_beta_fast": 16.0,
    }

    assert read_gguf(rope__scaling__type="linear", rope__scaling__factor=8.0)[1].ropes[
        0
    ].scaling == LinearScaling(factor=8.0)
    assert read_gguf(rope__scale_linear=2.0)[1].ropes[0].scaling == LinearScaling(factor=2.0)
    assert read_gguf(rope__scaling__type="none")[1].ropes[0].scaling is None
    scaling = read_gguf("qwen2", **yarn)[1].ropes[0].scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_max_position, scaling.beta_fast) == (4.0, 1024, 16.0)


@pytest.mark.parametrize(
    ("architecture", "layers", "scalar"),
    [("gemma2", 26, 32), ("gemma2", 46, 16), ("gemma3", 34, 32), ("gemma3", 62, 16)],
)
def test_the_largest_gemmas_have_a_scale_of_their_own(
    architecture: str, layers: int, scalar: int
) -> None:
    _, config = read_gguf(
        architecture,
        block_count=layers,
        attention__key_length=32,
        attention__value_length=32,
        attention__sliding_window=512,
    )

    assert attention(config.layers[0].mixer).scale == scalar**-0.5
    every = 2 if architecture == "gemma2" else 6
    assert [window is None for window in windows(config)] == [
        (layer + 1) % every == 0 for layer in range(layers)
    ]
    assert not config.unit_offset  # files have one added already
    assert (attention(config.layers[0].mixer).softcap, config.logits_softcap) == (
        (50.0, 30.0) if architecture == "gemma2" else (None, None)
    )


def test_gemma_3_turns_local_layers_by_another_theta() -> None:
    _, config = read_gguf(
        "gemma3",
        block_count=6,
        rope__freq_base=1e6,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
        attention__sliding_window=512,
    )

    everywhere, local = config.ropes
    assert (everywhere.theta, everywhere.scaling) == (1e6, LinearScaling(factor=8.0))
    assert (local.theta, local.scaling) == (1e4, None)


def test_experts_are_counted() -> None:
    more: dict[str, Any] = {
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 24,
    }

    mixtral, qwen = read_gguf(**more)[1], read_gguf("qwen3moe", **more)[1]

    for config, size in ((mixtral, 96), (qwen, 24)):
        assert config.experts is not None
        assert (config.experts.routing.count, config.experts.routing.per_token) == (8, 2)
        assert config.experts.intermediate_size == size
        assert config.experts.routing.normalise
    assert mixtral.architecture == "MixtralForCausalLM"
    assert windows(mixtral) == (None,) * 4


def test_multipliers_of_granite_go_by_other_names() -> None:
    _, config = read_gguf(
        "granite",
        attention__scale=0.015625,
        embedding_scale=12.0,
        residual_scale=0.22,
        logit_scale=8.0,
    )

    assert (attention(config.layers[0].mixer).scale, config.embedding_multiplier) == (
        0.015625,
        12.0,
    )
    assert (config.layers[0].residual_multiplier, config.logits_divisor) == (0.22, 8.0)


def test_windows_may_be_listed_layer_by_layer() -> None:
    _, config = read_gguf(
        "exaone4",
        attention__sliding_window=128,
        attention__sliding_window_pattern=[True, True, False, True],
    )

    assert windows(config) == (128, 128, None, 128)
    assert windows(read_gguf("exaone4")[1]) == (None,) * 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"embedding_length": None}, "llama.embedding_length is missing"),
        ({"embedding_length": True}, "llama.embedding_length must be a whole number"),
        ({"attention__head_count": -4}, "attention.head_count must be at least 1"),
        ({"attention__head_count": []}, "attention.head_count must be the same"),
        ({"attention__layer_norm_rms_epsilon": "x"}, "rms_epsilon must be a number"),
        ({"rope__scaling__type": "su"}, "rope.scaling.type must be"),
        ({"rope__scaling__type": 3}, "rope.scaling.type must be text"),
        ({"rope__freq_base": float("nan")}, "rope_theta"),
        ({"shapes": {"token_embd.weight": (320,)}}, "token_embd.weight must be there"),
        ({"block_count": 1 << 40}, "llama.block_count must be a whole number from 1 to 1024"),
        ({"nextn_predict_layers": 4}, "nextn_predict_layers must be a whole number from 0 to 3"),
        ({"nextn_predict_layers": -1}, "nextn_predict_layers must be a whole number from 0 to 3"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfigError, match=field):
        read_gguf(**changes)


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gemma2"])
def test_heads_that_are_none_are_named(architecture: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"attention\.head_count"):
        read_gguf(architecture, block_count=46, attention__head_count=0)
    with pytest.raises(InvalidConfigError, match=r"attention\.key_length"):
        read_gguf(
            architecture,
            attention__key_length=0,
            attention__value_length=0,
            rope__dimension_count=16,
        )


def test_a_file_without_a_family_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"general\.architecture"):
        read_gguf_config(GgufFile(metadata={}, shapes={}, kinds={}, factors={}))


@pytest.mark.parametrize(
    "architecture", ["lfm2", "nemotron_h", "glm-dsa", "laguna", "muse-glimmer"]
)
@pytest.mark.parametrize("layers", [-1, 0, 1025, 2**32 - 1])
def test_no_list_is_made_for_layers_that_no_model_has(architecture: str, layers: int) -> None:
    """A number that is said once for all layers becomes a list, which must not be as long as a file wants."""
    with pytest.raises(InvalidConfigError, match=r"block_count must be a whole number from 1"):
        read_gguf(architecture, block_count=layers)


EXPERTS: dict[str, Any] = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_shared_feed_forward_length": 24,
}
INDEXER: dict[str, Any] = {
    f"attention.indexer.{name}": 4
    for name in ("head_count", "key_length", "top_k", "block_size", "local_blocks")
}


def test_layers_that_guess_further_tokens_are_left_out_in_every_family() -> None:
    kept: dict[str, dict[str, Any]] = {
        "llama": {},
        "qwen3moe": EXPERTS,
        "lfm2": {"shortconv.l_cache": 3},
    }

    for architecture, more in kept.items():
        _, config = read_gguf(architecture, **more, nextn_predict_layers=1)
        assert config.num_layers == 3, architecture


SPACES: dict[str, Any] = {
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "ssm.group_count": 1,
    "ssm.state_size": 16,
    "ssm.conv_kernel": 4,
}


@pytest.mark.parametrize(
    ("architecture", "tensor"),
    [
        ("nemotron_h", "blk.1.ffn_latent_down.weight"),
        ("laguna", "blk.0.attn_gate.weight"),
        ("minimax-m3", "blk.0.ffn_gate.weight"),
    ],
)
@pytest.mark.parametrize("shape", [(), (64,)])
def test_a_matrix_that_is_none_is_named(
    architecture: str, tensor: str, shape: tuple[int, ...]
) -> None:
    more: dict[str, Any] = EXPERTS | SPACES | INDEXER | {"rope.dimension_count": 8}

    with pytest.raises(InvalidConfigError, match=rf"{tensor} must be there, as a matrix"):
        read_gguf(architecture, shapes={tensor: shape}, **more)


def test_a_family_that_is_read_from_safetensors_alone_says_so() -> None:
    with pytest.raises(UnknownArchitectureError, match="safetensors alone"):
        read_gguf("deepseek4")
