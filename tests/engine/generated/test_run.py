"""Layers that one generated function can compute have one shape, and others have none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from config_layers import attention, with_each_mixer, with_layers
from tiny_models import Reference, make_model

from potluck.engine.device import CacheForm
from potluck.engine.generated.layers import generated_layer, is_generable
from potluck.engine.kernels.attending.attention import Heads
from potluck.engine.kernels.attending.attention_fields import KINDS
from potluck.engine.kernels.decoding.layer_shape import LayerShape
from potluck.engine.layers.blocks import DecoderLayer
from potluck.model.families.facts import POST_NORMS, SANDWICH_NORMS, LayerNorms
from potluck.model.formats import BF16
from potluck.model.mixing.mixers import AttentionSpec

MakeReference = Callable[..., Reference]

CACHE = torch.float16
EPSILON = 0.01  # what the variants have is the usual, behind which a mistake could hide
NORMS = {"llama": (True, False), "olmo 2": (False, True), "gemma 2": (True, True)}


def shape_of(block: DecoderLayer, cache: torch.dtype = CACHE) -> LayerShape | None:
    layer = generated_layer(block, CacheForm(cache))
    return None if layer is None else layer[0]


@pytest.mark.parametrize("variant", ["llama", "olmo 2", "gemma 2"])
def test_floats_of_16_bits_have_the_shape_of_their_layers(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant, dtype=torch.bfloat16)
    config = with_layers(reference.config, norm_eps=EPSILON)
    blocks = replace(reference, config=config).weights(scheme="bf16").blocks

    (shape,) = {shape_of(block, torch.bfloat16) for block in blocks}

    spec = config.layers[0].mixer
    assert isinstance(spec, AttentionSpec)
    assert shape is not None
    assert isinstance(shape.mixer, Heads)
    assert shape.epsilon == EPSILON
    assert shape.mixer.epsilon == spec.qk_norm_eps
    assert shape.mixer.cache_kind == KINDS[torch.bfloat16]
    assert shape.down_format is BF16
    assert shape.mixer.rotary_dim == spec.rotary_dim
    assert shape.mixer.softcap == spec.softcap
    assert (shape.has_norms_before, shape.has_norms_after) == NORMS[variant]


def test_windows_and_ropes_are_data(make_reference: MakeReference) -> None:
    reference = make_reference("phi 3")
    places = zip(reference.config.layers, (0, 0, None, 0), (5, None, 5, 5), strict=True)
    mixers = [
        replace(attention(layer.mixer), rope=rope, window=window) for layer, rope, window in places
    ]
    config = with_each_mixer(reference.config, mixers)

    blocks = replace(reference, config=config).weights(scheme="int4").blocks

    shapes = {shape_of(block) for block in blocks}
    assert None not in shapes
    assert len(shapes) == 1


@pytest.mark.parametrize("variant", ["llama", "olmo 2"])
def test_projections_that_stay_apart_have_no_shape(
    make_reference: MakeReference, variant: str
) -> None:
    blocks = make_reference(variant).weights(scheme="int4").blocks

    assert {shape_of(block) for block in blocks} == {None}


def test_a_layer_with_another_mixer_has_no_shape(
    make_reference: MakeReference,
) -> None:
    block, *_ = make_reference("llama, whole blocks").weights(scheme="int4").blocks
    mixer: Any = object()
    other = DecoderLayer(block.spec, mixer, block.mlp, block.norms)

    assert shape_of(block) is not None
    assert shape_of(other) is None


def test_layers_with_experts_have_the_shape_of_these(tmp_path: Path) -> None:
    # Whole blocks of rows, as all models of the Hub have them.
    reference = make_model("qwen 3 moe", tmp_path, changes={"moe_intermediate_size": 32})
    (shape,) = {shape_of(block) for block in reference.weights(scheme="int4").blocks}

    experts = reference.config.experts
    assert experts is not None
    assert shape is not None
    assert isinstance(shape.mixer, Heads)
    assert shape.intermediate == 32
    assert shape.routing == experts.routing


def test_experts_whose_matrices_stay_apart_have_no_shape(make_reference: MakeReference) -> None:
    assert {
        shape_of(block) for block in make_reference("qwen 3 moe").weights(scheme="int4").blocks
    } == {None}


def test_layers_that_no_kernel_computes_have_no_shape(tmp_path: Path) -> None:
    reference = make_model("qwen 3 moe", tmp_path, changes={"moe_intermediate_size": 32})
    plain = reference.config
    for unusual in (
        with_layers(plain, norms=POST_NORMS),
        with_layers(
            make_model("llama", tmp_path / "dense").config,
            norms=POST_NORMS,
            residual_multiplier=0.4,
        ),
        with_layers(plain, norms=LayerNorms(before_mixer="input_layernorm")),
    ):
        assert not any(map(is_generable, unusual.layers))
    for usual in (
        plain,
        with_layers(plain, residual_multiplier=0.4),
        with_layers(plain, norms=SANDWICH_NORMS),
    ):
        assert all(map(is_generable, usual.layers))
