"""Read and change what the layers of a config are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.model.mixing.mixers import AttentionSpec, Mixer


def windows(config: ModelConfig) -> tuple[int | None, ...]:
    """Of each layer; None also of one without attention."""
    return tuple(one.window for one in _attentions(config))


def layer_ropes(config: ModelConfig) -> tuple[int | None, ...]:
    """Of each layer; None also of one without attention."""
    return tuple(one.rope for one in _attentions(config))


def _attentions(config: ModelConfig) -> list[AttentionSpec]:
    """The mixers; in place of another kind one without window and rope."""
    none = AttentionSpec(hidden_size=1, heads=1, kv_heads=1, head_dim=2, rotary_dim=2, scale=1.0)
    mixers = [layer.mixer for layer in config.layers]
    return [one if isinstance(one, AttentionSpec) else none for one in mixers]


def row_bytes(config: ModelConfig, number_bytes: int) -> int:
    """Bytes of one token's keys and values in a layer."""
    return config.layers[0].cache(CacheSizes(number_bytes=number_bytes)).row.nbytes


def with_layers(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The config with these facts in every layer."""
    return replace(config, layers=tuple(replace(layer, **changes) for layer in config.layers))


def with_mixers(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The config with these facts in every layer that has attention."""
    mixers = [layer.mixer for layer in config.layers]
    return with_each_mixer(
        config,
        [replace(one, **changes) if isinstance(one, AttentionSpec) else one for one in mixers],
    )


def with_each_mixer(config: ModelConfig, mixers: Sequence[Mixer | None]) -> ModelConfig:
    """The config with these mixers, one for each layer."""
    pairs = zip(config.layers, mixers, strict=True)
    return replace(config, layers=tuple(replace(layer, mixer=mixer) for layer, mixer in pairs))


def attention(mixer: Mixer | None) -> AttentionSpec:
    """The mixer, which has to be attention with keys and values of its own."""
    assert isinstance(mixer, AttentionSpec)
    return mixer
