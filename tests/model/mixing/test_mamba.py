"""State spaces are read from a config, and cost the same however long a conversation is."""

import pytest

from potluck.errors import InvalidConfigError
from potluck.model.caches import CacheSizes, RecurrentCache
from potluck.model.config import ModelConfig
from potluck.model.mixing.mamba import MambaSpec
from potluck.model.mixing.mixers import AttentionSpec

GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "layer_types": ["mamba", "attention", "mamba"],
}


def read(**changes: object) -> ModelConfig:
    return ModelConfig.from_dict({**GRANITE, **changes})


@pytest.mark.parametrize("names", [("mamba", "attention"), ("linear_attention", "full_attention")])
def test_layers_are_named_as_in_files_of_today_and_of_before(names: tuple[str, str]) -> None:
    config = read(layer_types=[names[0], names[1], names[0]])

    assert [type(layer.mixer) for layer in config.layers] == [MambaSpec, AttentionSpec, MambaSpec]


def test_a_session_has_a_state_and_checkpoints_whatever_its_length() -> None:
    mixer = read().layers[0].mixer
    assert isinstance(mixer, MambaSpec)

    cache = mixer.cache(CacheSizes(number_bytes=2))

    assert isinstance(cache, RecurrentCache)
    assert cache.row.shapes == ((3, 128 + 2 * 16), (8, 16, 16))
    assert cache.nbytes(1) == cache.nbytes(100_000)


@pytest.mark.parametrize(
    "limits", [[0.0, float("inf")], [0.0, {"__float__": "Infinity"}], [0, "inf"], None]
)
def test_steps_without_limits_are_read_as_files_write_them(limits: object) -> None:
    assert read(time_step_limit=limits).layers == read().layers


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        ({"mamba_n_heads": 7}, "mamba_n_heads"),
        ({"mamba_n_groups": 3}, "mamba_n_groups"),
        ({"mamba_d_state": 10**6}, "mamba_d_state"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "hidden_act"),
        ({"layer_types": ["mamba", "other", "mamba"]}, "layer_types"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        read(**changes)
