"""`params.json` says what `config.json` says, in Mistral's words."""

import pytest

from potluck.errors import InvalidConfigError, UnknownArchitectureError
from potluck.model.checkpoint.consolidated import (
    config_of_params,
    hugging_face_names,
    in_this_order,
)
from potluck.model.config import ModelConfig
from potluck.model.mixing.rope import YarnScaling

PARAMS = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "hidden_dim": 96,
    "norm_eps": 1e-5,
    "vocab_size": 100,
    "rope_theta": 1e6,
}


def read(**more: object) -> ModelConfig:
    return ModelConfig.from_dict(config_of_params({**PARAMS, **more}))


def test_a_dense_model_is_a_mistral_with_queries_and_keys_in_pairs() -> None:
    config = read(max_position_embeddings=4096)

    assert (config.architecture, config.num_layers) == ("MistralForCausalLM", 2)
    assert (config.hidden_size, config.head_dim, config.max_position) == (64, 16, 4096)
    assert config.quantization is not None
    assert config.quantization.interleaved_heads
    assert read().max_position == 128_000
    assert read(max_seq_len=2048).max_position == 2048


def test_no_window_is_said_by_silence_and_one_by_its_number() -> None:
    assert config_of_params(PARAMS)["sliding_window"] is None
    assert config_of_params({**PARAMS, "sliding_window": 32})["sliding_window"] == 32
    with pytest.raises(InvalidConfigError, match="sliding_window"):
        read(sliding_window=[None, 32])


def test_experts_make_it_a_mixtral() -> None:
    config = read(moe={"num_experts": 8, "num_experts_per_tok": 2})

    assert config.architecture == "MixtralForCausalLM"
    experts = config.experts
    assert experts is not None
    assert (experts.routing.count, experts.routing.per_token) == (8, 2)


def test_long_contexts_are_those_of_ministral_3() -> None:
    yarn = {
        "original_max_position_embeddings": 16,
        "factor": 4,
        "apply_scale": False,
        "beta": 32,
        "alpha": 1,
    }
    scaling = {"original_max_position_embeddings": 16, "beta": 0.1}

    config = read(yarn=yarn, llama_4_scaling=scaling)

    assert config.architecture == "Ministral3ForCausalLM"
    (rope,) = config.ropes
    assert isinstance(rope.scaling, YarnScaling)
    assert (rope.scaling.factor, rope.scaling.attention_factor) == (4.0, 1.0)
    assert rope.query_scale is not None
    assert (rope.query_scale.beta, rope.query_scale.original_max_position) == (0.1, 16)


def test_weights_in_fp8_are_read_and_others_are_refused() -> None:
    config = read(quantization={"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"})

    assert config.quantization is not None
    assert (config.quantization.method, config.quantization.interleaved_heads) == ("fp8", True)
    with pytest.raises(InvalidConfigError, match=r"stored as int3.*config\.json and model-"):
        read(quantization={"qformat_weight": "int3"})


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"qk_nope_head_dim": 128}, "latent attention"),
        ({"moe": {"num_experts": 8, "num_shared_experts": 1}}, "shared experts"),
    ],
)
def test_another_kind_says_which_files_to_take(more: dict[str, object], kind: str) -> None:
    with pytest.raises(
        UnknownArchitectureError, match=rf"{kind}.*config\.json and model-….*GGUF file"
    ):
        read(**more)


def test_only_the_decoder_gets_names() -> None:
    stored = (
        "tok_embeddings.weight",
        "norm.weight",
        "output.weight",
        "layers.1.attention.wq.weight",
        "layers.1.attention.wo.qscale_weight",
        "layers.0.feed_forward.experts.7.w2.weight",
        "layers.0.feed_forward.gate.weight",
        "layers.0.attention.wq.qscale_act",
        "vision_encoder.transformer.layers.0.attention.wq.weight",
        "mm_projector.weight",
    )

    assert hugging_face_names(stored) == {
        "tok_embeddings.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
        "layers.1.attention.wq.weight": "model.layers.1.self_attn.q_proj.weight",
        "layers.1.attention.wo.qscale_weight": "model.layers.1.self_attn.o_proj.weight_scale",
        "layers.0.feed_forward.experts.7.w2.weight": "model.layers.0.block_sparse_moe.experts.7.w2.weight",
        "layers.0.feed_forward.gate.weight": "model.layers.0.block_sparse_moe.gate.weight",
    }


def test_a_config_in_the_other_layout_only_learns_the_order() -> None:
    fp8 = {"quantization_config": {"quant_method": "fp8"}}

    assert in_this_order({"a": 1})["quantization_config"] == {
        "quant_method": "plain",
        "interleaved_heads": True,
    }
    assert in_this_order(fp8)["quantization_config"] == {
        "quant_method": "fp8",
        "interleaved_heads": True,
    }
