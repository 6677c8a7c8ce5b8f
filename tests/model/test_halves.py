"""Layers that are a mixer or a feed-forward alone are read from a list, or from letters, and cost what they have."""

import pytest

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.model.layers import DenseSpec, MoeSpec
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec

NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "hybrid_override_pattern": "M-*E",
}


def read(**changes: object) -> ModelConfig:
    return ModelConfig.from_dict({**NEMOTRON, **changes})


def test_letters_and_a_list_say_the_same() -> None:
    config = read()

    parts = [(type(layer.mixer), type(layer.feed_forward)) for layer in config.layers]
    assert parts == [
        (MambaSpec, type(None)),
        (type(None), DenseSpec),
        (AttentionSpec, type(None)),
        (type(None), MoeSpec),
    ]
    kinds = ["mamba", "mlp", "attention", "moe"]
    assert read(hybrid_override_pattern=None, layers_block_type=kinds) == config
    assert config.num_layers == 4


def test_a_layer_has_the_norm_and_the_matrices_of_what_it_is() -> None:
    config = read()

    assert set(config.layers[1].tensors()) == {
        "norm.weight",
        "mixer.up_proj.weight",
        "mixer.down_proj.weight",
    }
    assert {name.split(".")[1] for name in config.layers[2].tensors()} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "weight",
    }  # fmt: skip


def test_a_feed_forward_caches_nothing_and_can_be_trimmed_anywhere() -> None:
    cache = read().layers[1].cache(CacheSizes(number_bytes=2))

    assert cache.nbytes(100_000) == cache.read_bytes(100_000) == 0
    assert cache.trim((0,), 77) == 77


def test_state_spaces_are_as_wide_as_their_heads_say_whatever_the_hidden_states() -> None:
    mixer = read(expand=2).layers[0].mixer

    assert isinstance(mixer, MambaSpec)
    assert (mixer.values_size, mixer.output.width) == (48, 48)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": ""}, "layer_types"),
        ({"layers_block_type": ["mamba", "other"]}, "layer_types"),
        ({"layers_block_type": ["mlp"] * 2000}, "layer_types"),
        ({"mamba_head_dim": "wide"}, "mamba_d_head"),
        ({"mlp_hidden_act": "relu"}, "relu2"),
        ({"moe_latent_size": -1}, "moe_latent_size"),
        ({"moe_latent_size": 65}, "moe_latent_size = 65.* from 1 to 64"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        read(**changes)
