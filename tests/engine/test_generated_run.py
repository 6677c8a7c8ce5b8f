"""Which layers are one shape, and which have none."""

from collections.abc import Callable

import pytest
from tiny_models import CPU, Reference

from potluck.engine.blocks import DecoderLayer
from potluck.engine.generated_run import run_shape
from potluck.engine.weights import load_weights

MakeReference = Callable[..., Reference]


def load(reference: Reference) -> tuple[DecoderLayer, ...]:
    weights = load_weights(
        reference.config,
        range(reference.config.num_layers),
        embedding=False,
        head=False,
        tensors=reference.tensors,
        scheme="int4",
        device=CPU,
    )
    return weights.blocks


def test_windows_and_ropes_are_data(make_reference: MakeReference) -> None:
    blocks = load(make_reference("phi 3"))
    shapes = [run_shape(block) for block in blocks]

    blocks[1].attention.window = None
    blocks[2].attention.rope = None

    assert shapes[0] is not None
    assert [run_shape(block) for block in blocks] == shapes
    assert len(set(shapes)) == 1


@pytest.mark.parametrize("variant", ["llama", "olmo 2"])
def test_projections_that_stay_apart_have_no_shape(
    make_reference: MakeReference, variant: str
) -> None:
    assert {run_shape(block) for block in load(make_reference(variant))} == {None}


def test_layers_with_experts_have_the_shape_of_what_is_before_them(
    make_reference: MakeReference,
) -> None:
    (shape,) = {run_shape(block) for block in load(make_reference("qwen 3 moe"))}

    assert shape is not None
    assert shape.intermediate == 0
