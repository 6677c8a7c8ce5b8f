"""Gated delta nets are read from a config, and cost the same however long a conversation is."""

import pytest
from config_layers import attention

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes, RecurrentCache
from potluck.model.config import ModelConfig
from potluck.model.formats import F32
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.shapes.table import SHAPES
from potluck.model.tensor_formats import tensor_format

NEXT = SHAPES["qwen3-next-80b-a3b"]
SIZES = CacheSizes(number_bytes=2)


def read(**changes: object) -> ModelConfig:
    return ModelConfig.from_dict({**NEXT, **changes})


def test_each_fourth_layer_has_attention_unless_the_config_lists_them() -> None:
    kinds = [type(layer.mixer) for layer in read().layers]
    listed = ["full_attention", "linear_attention"] * 24

    assert kinds == [DeltaNetSpec, DeltaNetSpec, DeltaNetSpec, AttentionSpec] * 12
    assert [type(layer.mixer) for layer in read(layer_types=listed).layers] == [
        AttentionSpec,
        DeltaNetSpec,
    ] * 24


@pytest.mark.parametrize(
    ("shape", "state", "row"),
    [("qwen3-next-80b-a3b", 79e6, 24_576), ("qwen3.6-27b", 157e6, 65_536)],
)
def test_states_do_not_grow_with_the_context(shape: str, state: float, row: int) -> None:
    config = ModelConfig.from_dict(SHAPES[shape])
    caches = [layer.cache(SIZES) for layer in config.layers]
    states = [cache for cache in caches if isinstance(cache, RecurrentCache)]

    assert sum(cache.row.nbytes for cache in states) == pytest.approx(state, rel=0.01)
    assert all(cache.nbytes(1) == cache.nbytes(100_000) for cache in states)
    assert sum(cache.nbytes(2) - cache.nbytes(1) for cache in caches) == row


def test_queries_bring_gates_of_their_own_size_unless_the_config_says_no() -> None:
    gated, plain = (attention(read(attn_output_gate=has).layers[3].mixer) for has in (True, False))

    assert gated.projections[0].rows == (2 * 4096, 512, 512)
    assert plain.projections[0].rows == (4096, 512, 512)


def test_what_decays_are_computed_of_stays_f32_in_every_scheme() -> None:
    config = read()
    name = "model.layers.0.linear_attn.in_proj_ba.weight"

    assert config.layer_tensors(0)[name] == (64, 2048)
    assert tensor_format(config, name, (64, 2048), "int4") is F32
    assert tensor_format(config, name.replace("ba", "qkvz"), (12288, 2048), "int4") is not F32


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("linear_num_value_heads", 24, "must be a multiple of linear_num_key_heads = 16"),
        ("linear_conv_kernel_dim", 1000, "must be a whole number from 2 to 16"),
        ("output_gate_type", "tanh", "must be silu, swish, sigmoid"),
        ("hidden_act", "gelu_pytorch_tanh", "must be silu beside a delta net"),
        ("layer_types", ["linear_attention"], "must have one entry for each of 48 layers"),
        (
            "layer_types",
            ["mamba"] * 48,
            "must be full_attention or indexed_attention or linear_attention",
        ),
    ],
)
def test_what_is_not_there_is_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        read(**{field: value})
