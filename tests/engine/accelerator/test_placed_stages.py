"""A packed model whose matrices are placed as on a GPU, and whose tokens are replayed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from tape_graphs import TapeGraphs
from tiny_models import CONTEXT, CPU, SESSION, Reference
from torch import Tensor

from potluck.engine.accelerator import GraphedHead, MakeLinear, choose_linear, graph_runs
from potluck.engine.accelerator.linears import BlockLinear
from potluck.engine.kernels import ReferenceKernels
from potluck.engine.layers.attention import Attention
from potluck.engine.layers.blocks import LayerRun
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.mlp import GatedMlp
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.stage import Stage
from potluck.model.formats import INT4, INT4_OFFSET, INT8, PackedFormat

pytestmark = pytest.mark.usefixtures("torch_alone")

MakeReference = Callable[..., Reference]

TOKENS = 12


def place(weights: StageWeights, weight_format: PackedFormat, make: MakeLinear) -> StageWeights:
    """Pack a stage's matrices, and place them."""

    def placed(linear: Linear) -> Linear:
        assert isinstance(linear, FloatLinear)
        there = make(ReferenceKernels().pack(linear.weight, weight_format), linear.bias)
        there.place()
        return there

    for block in weights.blocks:
        attention, mlp = block.mixer, block.mlp
        assert isinstance(attention, Attention)
        assert isinstance(mlp, GatedMlp)
        attention.qkv, attention.output = placed(attention.qkv), placed(attention.output)
        mlp.gate_up, mlp.down = placed(mlp.gate_up), placed(mlp.down)
    assert weights.lm_head is not None
    return replace(weights, lm_head=placed(weights.lm_head), runs=(LayerRun(0, weights.blocks),))


def logits_of(stage: Stage, ids: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the logits of all tokens, which go through the stage one after the other."""
    weights = replace(stage.weights, lm_head=None)
    body = Stage(weights, context=CONTEXT, cache_budget=1 << 24, epoch=1)
    body.open(SESSION, epoch=1)
    logits: list[Tensor] = []
    for position in range(len(ids)):
        token = ids[position : position + 1]
        output = body.forward(SESSION, token, epoch=1, step=position, position=position)
        assert output.hidden is not None
        logits.append(head(output.hidden.tensor))
    return torch.cat(logits)


@pytest.mark.parametrize(
    ("variant", "weight_format"),
    [("llama, biases", INT8), ("gemma 2", INT4), ("qwen 3", INT4_OFFSET)],
    ids=str,
)
@torch.inference_mode()
def test_logits_are_those_of_the_packed_weights(
    make_reference: MakeReference, variant: str, weight_format: PackedFormat
) -> None:
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)
    by_blocks = partial(BlockLinear, dtype=torch.float32, device=CPU)
    plain, ours = (
        Stage(
            place(reference.stage().weights, weight_format, make), context=CONTEXT, cache_budget=0
        )
        for make in (by_blocks, choose_linear(CPU, torch.float32))
    )
    graphs = TapeGraphs()
    ours.weights = replace(ours.weights, runs=graph_runs(ours.weights.blocks, graphs))

    assert ours.head is not None
    assert plain.head is not None
    logits = logits_of(ours, ids, partial(GraphedHead(graphs), logits=ours.head.logits))

    expected = logits_of(plain, ids, plain.head.logits)
    assert [tape.replays for tape in graphs.captured] == [TOKENS] * 2
    assert ((logits - expected).norm() / expected.norm()).item() < 1e-4
