"""Stages on devices that are not here: nothing is on another device, of another dtype, or waited for."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
import torch
from fake_devices import FakeGraphs, fake_device
from tiny_models import CONTEXT, SESSION, Reference

from potluck.engine.accelerator.linears import Int4Linear
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.loading import builder, matrices
from potluck.engine.loading.builder import build_weights
from potluck.engine.payload import Activations
from potluck.engine.session import StepTokens
from potluck.engine.stage import Stage
from potluck.model.schemes import PACKED_SCHEMES, Scheme

MakeReference = Callable[..., Reference]

CUDA, MPS = torch.device("cuda", 0), torch.device("mps", 0)
LAYERS = 3  # of each model, which are all the kinds of layers that it has


@pytest.fixture(autouse=True, scope="module")
def tried_once() -> Iterator[None]:
    """What a device can do is tried once, and not again for each stage."""
    choose_ops = cache(partial(matrices.choose_ops, dtype=torch.bfloat16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrices, "choose_ops", lambda device, _: choose_ops(device))
        patch.setattr(matrices, "choose_linear", cache(matrices.choose_linear))
        yield


@pytest.mark.parametrize(
    ("device", "variant", "scheme"),
    [
        pytest.param(CUDA, "llama, biases", "int4", marks=pytest.mark.slow),
        (CUDA, "gemma 2", "bf16"),
        pytest.param(CUDA, "gemma 3", "int8", marks=pytest.mark.slow),
        (CUDA, "olmo 2", "f16"),
        (CUDA, "gemma 2", "f16"),  # which would overflow
        pytest.param(MPS, "gemma 2", "int4", marks=pytest.mark.slow),
        (MPS, "gemma 3", "bf16"),
        (MPS, "qwen 3.6, text of a model with pictures", "bf16"),
        (MPS, "deepseek 3, dense, odd sizes, halves", "bf16"),
        pytest.param(MPS, "deepseek 3, dense, odd sizes, halves", "int4", marks=pytest.mark.slow),
        (MPS, "glm 5.2", "bf16"),
        (CUDA, "gemma 4", "bf16"),
        (CUDA, "command r", "bf16"),
        (CUDA, "nemotron h, dense, biases", "bf16"),
    ],
)
def test_chunks_and_tokens_stay_on_the_device(
    make_reference: MakeReference,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    variant: str,
    scheme: Scheme,
) -> None:
    config = make_reference(variant).config
    graphs = FakeGraphs(device)
    asked: list[torch.device] = []

    def find_graphs(device: torch.device) -> FakeGraphs | None:
        asked.append(device)
        return graphs if device == CUDA else None

    monkeypatch.setattr(builder, "find_graphs", find_graphs)

    with fake_device(device, monkeypatch):
        weights = build_weights(
            config,
            range(LAYERS),
            embedding=True,
            head=True,
            scheme=scheme,
            device=device,
            fill=lambda _: lambda: None,
        )
        kind = Int4Linear if scheme in PACKED_SCHEMES else FloatLinear
        mixers = [block.mixer for block in weights.blocks if block.mixer is not None]
        assert all(type(mixer.matrices[-1]) is kind for mixer in mixers)
        assert {layer.mixer for layer in config.layers} == {b.spec.mixer for b in weights.blocks}
        stage = Stage(weights, context=CONTEXT, cache_budget=1 << 24, epoch=1)
        stage.open(SESSION, epoch=1)
        assert stage.head is not None
        cache, position = stage._sessions[SESSION].cache, 0
        for tokens in (7, 1, 5, 1):
            stage._reserve(SESSION, position + tokens)
            inputs = Activations.of(torch.zeros(tokens, dtype=torch.int32))
            step = StepTokens(SESSION, inputs, 1, position, position, None)
            x = stage._forward_pass.run_layers([step], [cache])
            logits, best = stage.head.next_logits(x[-1:])
            position += tokens

            assert (x.device, x.shape) == (device, (tokens, config.hidden_size))
            is_f16 = scheme == "f16" and not config.exceeds_f16
            assert x.dtype == weights.dtype == (torch.float16 if is_f16 else torch.bfloat16)
            assert (logits.device, logits.dtype) == (device, torch.float32)
            assert (logits.shape, best) == ((config.vocab_size,), None)
    assert asked == [device]  # once: layers and head share what they capture into
    assert graphs.captured == (2 if device == CUDA else 0)  # layers and head
