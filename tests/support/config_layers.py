"""Read and change what the layers of a config are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.model.mixers import AttentionSpec, Mixer


def windows(config: ModelConfig) -> tuple[int | None, ...]:
    return tuple(attention(layer.mixer).window for layer in config.layers)


def layer_ropes(config: ModelConfig) -> tuple[int | None, ...]:
    return tuple(layer.mixer.rope for layer in config.layers)


def row_bytes(config: ModelConfig, number_bytes: int) -> int:
    """Bytes of one token's keys and values in a layer."""
    return config.layers[0].mixer.cache(CacheSizes(number_bytes=number_bytes)).row.nbytes


def with_layers(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The config with these facts in every layer."""
    return replace(config, layers=tuple(replace(layer, **changes) for layer in config.layers))


def with_mixers(config: ModelConfig, **changes: Any) -> ModelConfig:
    """The config with these facts of attention in every layer."""
    return with_each_mixer(
        config, [replace(attention(one.mixer), **changes) for one in config.layers]
    )


def with_each_mixer(config: ModelConfig, mixers: Sequence[Mixer]) -> ModelConfig:
    """The config with these mixers, one for each layer."""
    pairs = zip(config.layers, mixers, strict=True)
    return replace(config, layers=tuple(replace(layer, mixer=mixer) for layer, mixer in pairs))


def attention(mixer: Mixer) -> AttentionSpec:
    """The mixer, which has to be attention with keys and values of its own."""
    assert isinstance(mixer, AttentionSpec)
    return mixer
