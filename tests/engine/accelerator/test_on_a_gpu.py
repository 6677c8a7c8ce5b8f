"""The same on a real device, where there is one."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import Reference

from potluck.engine.accelerator import (
    GraphedHead,
    capabilities,
    choose_linear,
    choose_pieces,
    find_graphs,
    graph_runs,
)
from potluck.engine.attention import Step
from potluck.engine.device import compute_dtype, find_devices
from potluck.engine.kernels import ReferenceKernels
from potluck.engine.kvcache import LayerCache
from potluck.engine.rotary import Rotary

MakeReference = Callable[..., Reference]

FOUND = find_devices()[0]
DEVICE = FOUND.torch_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(FOUND.kind == "cpu", reason="this computer has a CPU alone"),
]
needs_graphs = pytest.mark.skipif(FOUND.kind != "cuda", reason="no graphs on this device")


@pytest.mark.parametrize("tokens", [1, 5, 200])
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_multiply(bits: int, tokens: int) -> None:
    dtype = compute_dtype("int4", DEVICE)
    packed = ReferenceKernels().pack(torch.randn(1072, 416), bits)
    x = torch.randn(tokens, 416).to(dtype)

    linear = choose_linear(DEVICE, dtype)(packed, None)
    linear.place()
    y = linear(x.to(DEVICE)).cpu().float()

    expected = x.float() @ packed.dequantise().t()
    assert ((y - expected).norm() / expected.norm()).item() < 0.01


def test_its_capabilities_are_found() -> None:
    found = capabilities(DEVICE)

    assert found.products in ("int4", "blocks")
    assert choose_pieces(DEVICE, found.dtype)


@needs_graphs
@pytest.mark.parametrize("variant", ["llama", "gemma 2", "gemma 3", "qwen 3 moe, some layers, odd"])
@torch.inference_mode()
def test_graphs_compute_what_the_layers_do(make_reference: MakeReference, variant: str) -> None:
    reference = make_reference(variant)
    weights = reference.stage(embedding=False, device=DEVICE).weights
    config = weights.config
    graphs = find_graphs(DEVICE)
    assert graphs is not None
    runs = graph_runs(weights.blocks, graphs)
    rotaries = [Rotary(rope, 600, torch.float32, DEVICE) for rope in config.ropes.distinct]
    ours, theirs = (
        [
            LayerCache(config.num_kv_heads, config.head_dim, torch.float32, DEVICE)
            for _ in weights.blocks
        ]
        for _ in range(2)
    )
    for cache in (*ours, *theirs):
        cache.resize(256, 0)

    for position in range(300):
        if position == 250:
            for cache in (*ours, *theirs):
                cache.resize(600, position)
        step = Step(position, 1, rotaries, DEVICE)
        x = expected = torch.randn(1, config.hidden_size, device=DEVICE)
        for run in runs:
            x = run(x, ours, step)
        for block, cache in zip(weights.blocks, theirs, strict=True):
            expected = block.forward(expected, cache, step)
        assert ((x - expected).norm() / expected.norm()).item() < 1e-3


@needs_graphs
@torch.inference_mode()
def test_a_graph_of_a_head_computes_what_the_head_does(llama: Reference) -> None:
    stage = llama.stage(device=DEVICE)
    graphs = find_graphs(DEVICE)
    assert graphs is not None
    head = GraphedHead(graphs)

    for _ in range(3):
        hidden = torch.randn(1, llama.config.hidden_size, device=DEVICE)
        assert torch.allclose(
            head(hidden, stage.logits), stage.logits(hidden), rtol=1e-4, atol=1e-4
        )
