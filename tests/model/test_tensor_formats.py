"""What weights take in every scheme, and which schemes a model is tried in."""

import dataclasses

import pytest

from potluck.model.config import ModelConfig
from potluck.model.formats import BF16, F32, INT4, INT4_OFFSET, INT4_SUPER, INT8, WeightFormat
from potluck.model.quantized import Quantization
from potluck.model.schemes import PACKED_SCHEMES, Scheme
from potluck.model.tensor_formats import (
    SMALL_MODEL_BYTES,
    schemes_to_try,
    tensor_bytes,
    tensor_format,
    weight_bytes,
)

LLAMA = ModelConfig.from_dict(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
)
EXPERTS = ModelConfig.from_dict(
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 100,
    }
)
GEMMA = ModelConfig.from_dict(
    {
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
)
MATRIX = "model.layers.0.mlp.up_proj.weight"


def test_what_is_no_matrix_is_not_packed() -> None:
    """A convolution over tokens has weights of three axes: channels, 1, tokens."""
    name = "model.layers.0.linear_attn.conv1d.weight"

    for scheme in PACKED_SCHEMES:
        assert tensor_format(LLAMA, name, (96, 1, 4), scheme) is F32
        assert tensor_bytes(LLAMA, name, (96, 1, 4), scheme) == 4 * 96 * 4
        assert tensor_format(LLAMA, "model.norm.weight", (64,), scheme) is F32


def test_a_head_may_have_more_bits_than_the_layers() -> None:
    formats = {
        scheme: [
            tensor_format(LLAMA, name, (100, 64), scheme)
            for name in (MATRIX, "lm_head.weight", "model.embed_tokens.weight")
        ]
        for scheme in ("bf16", "int8", "int4-offset", "int4-head8", "int4")
    }
    assert formats == {
        "bf16": [BF16, BF16, BF16],
        "int8": [INT8, INT8, INT8],
        "int4-offset": [INT4_OFFSET, INT8, INT8],
        "int4-head8": [INT4_SUPER, INT8, INT8],
        "int4": [INT4_SUPER, INT4_SUPER, INT8],  # an embedding that is only looked up costs no time
    }


def test_norms_and_routers_are_not_packed() -> None:
    router = "model.layers.0.mlp.gate.weight"
    assert tensor_format(EXPERTS, router, (4, 64), "int4") is F32
    assert tensor_bytes(EXPERTS, router, (4, 64), "int4") == 4 * 64 * 4
    assert (
        tensor_format(EXPERTS, "model.layers.0.mlp.experts.3.up_proj.weight", (32, 64), "int4")
        is INT4_SUPER
    )
    assert tensor_bytes(LLAMA, "model.norm.weight", (64,), "bf16") == 4 * 64


def test_a_scheme_with_fewer_bits_takes_less() -> None:
    tensors = LLAMA.stage_tensors(range(2), embedding=True, head=True)
    sizes = [
        weight_bytes(LLAMA, tensors, scheme)
        for scheme in ("f32", "bf16", "int8", "int4-offset", "int4-head8", "int4")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 6


def test_with_offsets_what_is_stored_more_finely_has_8_bits() -> None:
    stored = Quantization(
        method="gguf",
        bits=4,
        is_symmetric=False,
        higher_precision=frozenset({(1, "down"), (0, "qkv")}),
    )
    model = dataclasses.replace(LLAMA, quantization=stored)

    def held(
        name: str, config: ModelConfig = model, scheme: Scheme = "int4-offset"
    ) -> WeightFormat:
        return tensor_format(config, f"model.{name}.weight", (96, 64), scheme)

    assert [held(f"layers.{layer}.mlp.down_proj") for layer in (0, 1)] == [INT4_OFFSET, INT8]
    assert {held(f"layers.0.self_attn.{part}_proj") for part in "qkv"} == {INT8}
    assert {held(f"layers.1.self_attn.{part}_proj") for part in "qkvo"} == {INT4_OFFSET}
    assert held("layers.0.self_attn.o_proj") is INT4_OFFSET
    assert held("layers.1.mlp.down_proj", scheme="int4") is INT4_SUPER
    assert held("layers.1.mlp.down_proj", scheme="int8") is INT8
    kinds = model.layer_kinds
    assert [kind.finer for kind in kinds] == [{"qkv"}, {"down"}]
    experts = dataclasses.replace(EXPERTS, quantization=stored)
    assert held("layers.1.mlp.experts.3.down_proj", experts) is INT8
    assert held("layers.1.mlp.experts.3.up_proj", experts) is INT4_OFFSET


@pytest.mark.parametrize(("is_coarse", "held"), [(True, INT4_OFFSET), (False, INT8)])
def test_with_offsets_a_head_is_held_as_it_is_stored(is_coarse: bool, held: WeightFormat) -> None:
    stored = Quantization(method="gguf", bits=4, is_symmetric=False, has_coarse_head=is_coarse)
    model = dataclasses.replace(LLAMA, quantization=stored)

    assert tensor_format(model, "lm_head.weight", (100, 64), "int4-offset") is held
    assert tensor_format(model, "lm_head.weight", (100, 64), "int4") is INT4_SUPER
    assert tensor_format(model, "model.embed_tokens.weight", (100, 64), "int4-offset") is INT8


@pytest.mark.parametrize(
    ("stored", "int4", "with_offsets"),
    [
        (Quantization(method="gguf", bits=4), INT4, INT4_OFFSET),
        (Quantization(method="gptq", bits=3, group_size=128), INT4, INT4_OFFSET),
        (Quantization(method="gptq", bits=4, group_size=16), INT4_SUPER, INT4_OFFSET),
        (Quantization(method="gptq", bits=8), INT4_SUPER, INT4_OFFSET),
        (Quantization(method="awq", bits=4, is_symmetric=False), INT4_SUPER, INT4_OFFSET),
        (
            Quantization(method="gguf", bits=4, is_symmetric=False, has_super_blocks=True),
            INT4_SUPER,
            INT4_SUPER,
        ),
    ],
)  # fmt: skip
def test_layers_of_4_bits_are_held_as_they_are_stored_if_that_is_exact(
    stored: Quantization, int4: WeightFormat, with_offsets: WeightFormat
) -> None:
    model = dataclasses.replace(LLAMA, quantization=stored)

    assert tensor_format(model, MATRIX, (96, 64), "int4") is int4
    assert tensor_format(model, MATRIX, (96, 64), "int4-head8") is int4
    assert tensor_format(model, MATRIX, (96, 64), "int4-offset") is with_offsets


def test_auto_begins_with_what_loses_nothing() -> None:
    large = 10 * SMALL_MODEL_BYTES
    packed = ("int8", "int4-head8", "int4")
    assert schemes_to_try(LLAMA, {"BF16"}, large) == ("bf16", *packed)
    assert schemes_to_try(LLAMA, {"F16", "F32"}, large) == ("f16", *packed)  # norms are f32 in GGUF
    assert schemes_to_try(LLAMA, {"F16", "BF16"}, large) == ("bf16", *packed)
    assert schemes_to_try(LLAMA, {"F16"}, SMALL_MODEL_BYTES - 1) == ("f32", "f16", *packed)
    assert schemes_to_try(LLAMA, {"F32"}, large) == ("f32", "bf16", *packed)


def test_hidden_states_beyond_f16_are_kept_in_bf16() -> None:
    assert schemes_to_try(GEMMA, {"F16"}, 10 * SMALL_MODEL_BYTES)[0] == "bf16"
