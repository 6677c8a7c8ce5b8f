"""A token at a position that is on the device goes through the layers as one at a known position does."""

from collections.abc import Callable
from statistics import median

import pytest
import torch
from config_layers import attention
from tiny_models import CPU, Reference
from torch import Tensor

from potluck.engine.accelerator.static_step import (
    StaticInputs,
    clear_rest,
    prefix_length,
    static_forward,
    window_of,
)
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.rotary import Rotary
from potluck.engine.loading.stage_weights import StageWeights
from potluck.model.schemes import Scheme

pytestmark = pytest.mark.usefixtures("torch_alone")

MakeReference = Callable[..., Reference]

CAPACITY = 64
PROMPT = 12
FAMILIES = [
    "llama, biases",
    "qwen 3, window",
    "qwen 3 moe, some layers, odd",
    "gpt-oss",
    "phi 4 mini, short, partial",
    "gemma 2",
    "gemma 3",
    "olmo 2",
    "smollm 3",
    "granite",
]
TOKENS = 30


class Session:
    """Caches of a stage's layers, full of what is not a number where nothing is cached."""

    def __init__(self, weights: StageWeights) -> None:
        config = weights.config
        self.weights = weights
        self.rotaries = [Rotary(rope, CAPACITY, weights.dtype, CPU) for rope in config.ropes]
        self.caches = [
            LayerCache(
                attention(config.layers[0].mixer).kv_heads,
                config.head_dim,
                weights.cache_dtype,
                CPU,
            )
            for _ in weights.blocks
        ]
        for cache in self.caches:
            cache.resize(CAPACITY, 0)
            cache.both.fill_(torch.nan)

    def step(self, position: int, tokens: int = 1) -> Step:
        return Step(position, tokens, self.rotaries, CPU)

    def forward(self, x: Tensor, position: int) -> Tensor:
        step = self.step(position, len(x))
        for block, cache in zip(self.weights.blocks, self.caches, strict=True):
            x = block.forward(x, cache, step)
        return x


def hidden(weights: StageWeights, tokens: int) -> Tensor:
    return torch.randn(tokens, weights.config.hidden_size).to(weights.dtype)


@torch.inference_mode()
def errors_of(reference: Reference, scheme: Scheme = "f32") -> list[float]:
    """Return relative errors: of tokens after a prompt, in prefixes of 16 to 64, and of the caches."""
    weights = reference.stage(embedding=False, head=False, scheme=scheme).weights
    ours, theirs = Session(weights), Session(weights)
    prompt = hidden(weights, PROMPT)
    ours.forward(prompt, 0)
    theirs.forward(prompt, 0)
    windows = {window_of(block) for block in weights.blocks}
    inputs = StaticInputs(hidden(weights, 1), ours.step(0), dict.fromkeys(windows, 0))
    errors: list[float] = []
    length, lengths = 0, dict[int | None, int]()
    for position in range(PROMPT, PROMPT + TOKENS):
        x = hidden(weights, 1)
        while length <= position:
            length = max(16, 2 * length)
            lengths = dict.fromkeys(windows, length)
            clear_rest(weights.blocks, ours.caches, position, lengths)
        inputs.load(x, ours.step(position), dict.fromkeys(windows, position))
        y = static_forward(weights.blocks, ours.caches, inputs, lengths)
        expected = theirs.forward(x, position)
        errors.append(off(y, expected))
    assert length == CAPACITY
    for own, other in zip(ours.caches, theirs.caches, strict=True):
        cached = slice(PROMPT + TOKENS)
        errors.append(off(own.both[:, :, cached], other.both[:, :, cached]))
    return errors


def off(ours: Tensor, theirs: Tensor) -> float:
    return ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()


@pytest.mark.parametrize("variant", FAMILIES)
def test_every_family_computes_the_same(make_reference: MakeReference, variant: str) -> None:
    assert max(errors_of(make_reference(variant))) < 1e-5


@pytest.mark.parametrize("variant", ["llama", "gemma 3"])
def test_16_bits_compute_the_same_to_within_their_rounding(
    make_reference: MakeReference, variant: str
) -> None:
    reference = make_reference(variant, dtype=torch.bfloat16)

    assert median(errors_of(reference, "bf16")) < 0.03


def test_a_prefix_is_the_least_that_holds_the_position_and_never_more_than_there_is() -> None:
    positions = [0, 255, 256, 511, 512, 5000]

    lengths = [prefix_length(position, 6000) for position in positions]

    assert lengths == [256, 256, 512, 512, 1024, 6000]
    assert all(length > position for length, position in zip(lengths, positions, strict=True))
