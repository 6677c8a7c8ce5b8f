"""What a family takes for a missing field is what `transformers` takes."""

import json
from collections.abc import Mapping
from math import prod
from typing import Any, cast

import pytest
import transformers
from config_layers import attention

from potluck.errors import InvalidConfigError, UnknownArchitectureError
from potluck.model.config import ModelConfig
from potluck.model.families.facts import Activation
from potluck.model.families.table import FAMILIES
from potluck.model.mixing.rope import QueryScale
from potluck.model.shapes.table import SHAPES

SIZES: Mapping[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 32,
}
WITH_PICTURES = "Gemma3ForConditionalGeneration"


def config_class(architecture: str) -> Any:
    name = architecture.removesuffix("ForCausalLM")
    name = {"Step3p5": "Step3p7", "PhiMoE": "Phimoe"}.get(name, name)
    text = f"{name}TextConfig"
    return getattr(transformers, text if hasattr(transformers, text) else f"{name}Config")


def as_fields(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return cast("dict[str, object]", value)


# What `transformers` knows no value for either.
NEEDED = {
    "Dots1ForCausalLM": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6},
    "HeliumForCausalLM": {"num_key_value_heads": 8},
    # It refuses its own number of them beside another one of heads.
    "Glm5NextForCausalLM": {"num_key_value_heads": 32},
    "Qwen4ExpForCausalLM": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
    },
}


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_missing_fields_are_what_transformers_takes_for_them(architecture: str) -> None:
    named = {"architectures": [architecture]}
    sizes = {**SIZES, **NEEDED.get(architecture, {})}
    whole = json.loads(config_class(architecture)(**sizes, eos_token_id=2).to_json_string(False))

    ours = ModelConfig.from_dict({**sizes, **named, "eos_token_id": 2})

    assert ours == ModelConfig.from_dict(whole | named)


def test_the_text_part_of_gemma_3_is_read_as_published() -> None:
    """`google/gemma-3-4b-it` says little of its text: the rest is what the family takes."""
    published = {
        "architectures": [WITH_PICTURES],
        "eos_token_id": [1, 106],
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
    }

    config = ModelConfig.from_dict(published)

    mixer = attention(config.layers[0].mixer)
    assert (mixer.heads, mixer.kv_heads, config.head_dim) == (
        8,
        4,
        256,
    )
    assert config.eos_token_ids == (1, 106)
    assert config.tie_word_embeddings
    assert set(config.head_tensors()) == {"model.norm.weight", "model.embed_tokens.weight"}
    assert "model.layers.33.self_attn.q_norm.weight" in config.layer_tensors(33)


def test_llama_4_scout_is_read_as_published() -> None:
    """Three of four layers see chunks and have rope; the others scale their queries. Nothing of its rope is blended."""
    scout = SHAPES["llama-4-scout"]
    text = {
        **as_fields(scout["text_config"]),
        "no_rope_layers": [],
        "attn_temperature_tuning": 4,
        "moe_layers": list(range(48)),
    }
    published = ModelConfig.from_dict({**scout, "text_config": text})

    near, far = (attention(published.layers[layer].mixer) for layer in (2, 3))
    assert published.layers == ModelConfig.from_dict(scout).layers
    assert (near.window, near.in_chunks, near.qk_norm, near.rope) == (8192, True, "head", 0)
    assert (far.window, far.in_chunks, far.qk_norm, far.rope) == (None, False, None, 1)
    assert published.ropes[1].query_scale == QueryScale(
        beta=0.1, original_max_position=8192, first=1
    )


def test_the_first_gemma_means_the_tanh_of_gelu_by_either_name() -> None:
    def activation(name: str) -> Activation:
        fields = {**SIZES, "architectures": ["GemmaForCausalLM"], "hidden_act": name}
        feed_forward = ModelConfig.from_dict(fields).layers[0].feed_forward
        assert feed_forward is not None
        return feed_forward.activation

    assert activation("gelu") == activation("gelu_pytorch_tanh") == "gelu_pytorch_tanh"


def test_the_text_of_a_larger_model_is_of_the_family_that_its_type_says() -> None:
    def read(model_type: str | None) -> ModelConfig:
        text = {**SIZES, "num_key_value_heads": 8, "head_dim": 32}
        if model_type is not None:
            text["model_type"] = model_type
        whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
        return ModelConfig.from_dict(whole)

    assert read(None) == read("mistral")
    assert read("ministral3").ropes[0].query_scale is not None
    with pytest.raises(UnknownArchitectureError, match=r"text part of the model .* mamba"):
        read("mamba")


PUBLISHED: dict[str, tuple[int, Mapping[str, Any]]] = {
    "Mixtral 8x7B": (
        46_702_792_704,
        {
            "architectures": ["MixtralForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
        },
    ),
    "Qwen3 30B A3B": (
        30_532_122_624,
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            "vocab_size": 151936,
            "hidden_size": 2048,
            "head_dim": 128,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
        },
    ),
    "gpt-oss-20b": (
        20_914_757_184,
        {"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 24, "num_local_experts": 32},
    ),
    "gpt-oss-120b": (
        116_829_156_672,
        {"architectures": ["GptOssForCausalLM"]},
    ),
    "Phi-3 mini": (
        3_821_079_552,
        {
            "architectures": ["Phi3ForCausalLM"],
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
        },
    ),
    "Gemma 2 2B": (
        2_614_341_888,
        {
            "architectures": ["Gemma2ForCausalLM"],
            "vocab_size": 256000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
        },
    ),
    "Gemma 3 1B": (
        999_885_952,
        {
            "architectures": ["Gemma3ForCausalLM"],
            "vocab_size": 262144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
        },
    ),
    "SmolLM3 3B": (
        3_075_098_624,
        {
            "architectures": ["SmolLM3ForCausalLM"],
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_tensors_of_published_models_have_their_known_number_of_parameters(name: str) -> None:
    parameters, published = PUBLISHED[name]
    config = ModelConfig.from_dict(published)
    ends = config.embedding_tensors() | config.head_tensors()
    rows = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in ends.values())

    layers = sum(
        prod(shape)
        for layer in range(config.num_layers)
        for shape in config.layer_tensors(layer).values()
    )

    assert rows + layers == parameters


@pytest.mark.parametrize("field", ["quantization_config", "use_bidirectional_attention"])
def test_what_would_be_computed_wrongly_is_refused(field: str) -> None:
    for config in (
        {**SIZES, "architectures": ["Gemma3ForCausalLM"], field: {"some": "value"}},
        {"architectures": [WITH_PICTURES], "text_config": {**SIZES, field: True}},
    ):
        with pytest.raises(InvalidConfigError, match=field):
            ModelConfig.from_dict(config)
