"""Which layers are one shape, and which have none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import CPU, Reference, make_model

from potluck.engine.blocks import DecoderLayer
from potluck.engine.generated_run import run_shape
from potluck.engine.kernels.generated import KINDS
from potluck.engine.kernels.mixture_kernel import MixtureShape
from potluck.engine.weights import load_weights
from potluck.model.formats import BF16
from potluck.model.schemes import Scheme

MakeReference = Callable[..., Reference]

CACHE = torch.float16
EPSILON = 0.01  # what the variants have is the usual, behind which a mistake could hide
NORMS = {"llama": "before", "olmo 2": "after", "gemma 2": "around"}


def load(reference: Reference, scheme: Scheme = "int4") -> tuple[DecoderLayer, ...]:
    weights = load_weights(
        reference.config,
        range(reference.config.num_layers),
        embedding=False,
        head=False,
        tensors=reference.tensors,
        scheme=scheme,
        device=CPU,
    )
    return weights.blocks


@pytest.mark.parametrize("variant", ["llama", "olmo 2", "gemma 2"])
def test_floats_of_16_bits_have_the_shape_of_their_layers(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant, dtype=torch.bfloat16)
    config = replace(reference.config, rms_norm_eps=EPSILON)
    blocks = load(replace(reference, config=config), "bf16")

    (shape,) = {run_shape(block, torch.bfloat16) for block in blocks}

    attention = blocks[0].attention
    assert shape is not None
    assert shape.epsilon == EPSILON
    assert shape.attention.epsilon == (EPSILON if attention.qk_norm else 0.0)
    assert shape.attention.cache_kind == KINDS[torch.bfloat16]
    assert shape.down_format is BF16
    assert shape.attention.rotary_dim == attention.rotary_dim
    assert shape.attention.softcap == getattr(attention, "cap", None)
    assert shape.norms == NORMS[variant]


def test_windows_and_ropes_are_data(make_reference: MakeReference) -> None:
    blocks = load(make_reference("phi 3"))
    shapes = [run_shape(block, CACHE) for block in blocks]

    blocks[1].attention.window = None
    blocks[2].attention.rope = None

    assert shapes[0] is not None
    assert [run_shape(block, CACHE) for block in blocks] == shapes
    assert len(set(shapes)) == 1


@pytest.mark.parametrize("variant", ["llama", "olmo 2"])
def test_projections_that_stay_apart_have_no_shape(
    make_reference: MakeReference, variant: str
) -> None:
    blocks = load(make_reference(variant))

    assert {run_shape(block, CACHE) for block in blocks} == {None}


def test_layers_with_experts_have_the_shape_of_these(tmp_path: Path) -> None:
    # Whole blocks of rows, as all models of the Hub have them.
    reference = make_model("qwen 3 moe", tmp_path, changes={"moe_intermediate_size": 32})
    (shape,) = {run_shape(block, CACHE) for block in load(reference)}

    experts = reference.config.experts
    assert experts is not None
    assert shape is not None
    assert shape.intermediate == 32
    assert shape.mixture == MixtureShape(
        count=experts.count, per_token=experts.per_token, normalise=experts.normalise
    )


def test_experts_whose_matrices_stay_apart_have_no_shape(make_reference: MakeReference) -> None:
    assert {run_shape(block, CACHE) for block in load(make_reference("qwen 3 moe"))} == {None}
