"""What weights take in every scheme, and which schemes a model is tried in."""

import pytest

from potluck.engine.kernels.layout import packed_bytes as laid_out_bytes
from potluck.model.config import ModelConfig
from potluck.model.schemes import (
    SMALL_MODEL_BYTES,
    packed_bytes,
    schemes_to_try,
    tensor_bits,
    tensor_bytes,
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


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "width"), [(16, 32), (17, 33), (1, 1), (4096, 14336)])
def test_packed_bytes_are_those_of_the_kernels(rows: int, width: int, bits: int) -> None:
    assert packed_bytes(rows, width, bits) == laid_out_bytes(rows, width, bits)


def test_a_head_may_have_more_bits_than_the_layers() -> None:
    bits = {
        scheme: [
            tensor_bits(LLAMA, name, (100, 64), scheme)
            for name in (MATRIX, "lm_head.weight", "model.embed_tokens.weight")
        ]
        for scheme in ("bf16", "int8", "int4-head8", "int4")
    }
    assert bits == {
        "bf16": [None, None, None],
        "int8": [8, 8, 8],
        "int4-head8": [4, 8, 8],
        "int4": [4, 4, 8],  # an embedding that is only looked up costs no time
    }


def test_norms_and_routers_are_not_packed() -> None:
    router = "model.layers.0.mlp.gate.weight"
    assert tensor_bits(EXPERTS, router, (4, 64), "int4") is None
    assert tensor_bytes(EXPERTS, router, (4, 64), "int4") == 4 * 64 * 4
    assert (
        tensor_bits(EXPERTS, "model.layers.0.mlp.experts.3.up_proj.weight", (32, 64), "int4") == 4
    )
    assert tensor_bytes(LLAMA, "model.norm.weight", (64,), "bf16") == 4 * 64


def test_a_scheme_with_fewer_bits_takes_less() -> None:
    tensors = LLAMA.stage_tensors(range(2), embedding=True, head=True)
    sizes = [
        weight_bytes(LLAMA, tensors, scheme)
        for scheme in ("f32", "bf16", "int8", "int4-head8", "int4")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 5


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
