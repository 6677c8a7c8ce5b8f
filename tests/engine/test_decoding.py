"""One token through a stage's runs is the token through its layers, whatever the family."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from tiny_models import CONTEXT, CPU, VARIANTS, make_model, off
from torch import Tensor

from potluck.engine.attention import Step
from potluck.engine.builder import StageWeights
from potluck.engine.decoding import LayerRun, Run
from potluck.engine.kvcache import LayerCache
from potluck.engine.rotary import Rotary
from potluck.engine.weights import load_weights

TOKENS = 24  # more than any window
# Of the hidden states. Both paths multiply with the same integers, but round their inputs to 8 bits:
# where a last bit decides, that is a step of 1/127, which the next layers pass on.
TOLERANCE = 0.02

FAMILIES = [
    "llama",
    "llama, biases",
    "mistral, window",
    "qwen 2, window in the last layers",
    "qwen 3, window",
    "phi 3",
    "phi 4 mini, short, partial",
    "gemma 2",
    "gemma 3",
    "gemma 3, text of a model with pictures",
    "olmo 2",
    "olmo 2, no shared key heads, bias",
    "smollm 3",
    "smollm 3, window, biases",
    "granite",
    "granite, tied, biases",
    "exaone 4",
    "exaone 4, hybrid",
]
MIXTURES = ["mixtral, one expert, window", "qwen 3 moe", "qwen 3 moe, some layers, odd"]


Load = Callable[[str], StageWeights]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """The variant with projections of whole blocks of rows, as all models of the Hub have them."""

    @cache
    def load(variant: str) -> StageWeights:
        family, fields = VARIANTS[variant]
        # Phi's projections are one matrix in the files; rotary factors fix the size of its heads.
        changes: dict[str, Any] = {} if family == "Phi3" else {"hidden_size": 64}
        if "head_dim" in fields:
            changes["head_dim"] = 16
        changes["intermediate_size"] = 80
        reference = make_model(variant, tmp_path_factory.mktemp("model"), changes=changes)
        return load_weights(
            reference.config,
            range(reference.config.num_layers),
            embedding=False,
            head=False,
            tensors=reference.tensors,
            scheme="int8",
            device=CPU,
        )

    return load


def run_tokens(weights: StageWeights, runs: Sequence[Run], tokens: Tensor) -> Tensor:
    """Hidden states (T, 1, D) → (T, D), one after the other."""
    config, dtype = weights.config, weights.cache_dtype
    caches = [LayerCache(config.num_kv_heads, config.head_dim, dtype, CPU) for _ in weights.blocks]
    for layer in caches:
        layer.resize(CONTEXT, 0)
    rotaries = [Rotary(rope, CONTEXT, weights.dtype, CPU) for rope in config.ropes.distinct]
    outputs: list[Tensor] = []
    for position, token in enumerate(tokens):
        x, step = token, Step(position, 1, rotaries, CPU)
        for run in runs:
            x = run(x, caches, step)
        outputs.append(x)
    return torch.cat(outputs)


@pytest.mark.parametrize("variant", [*FAMILIES, *MIXTURES])
@torch.inference_mode()
def test_runs_compute_what_layers_do(load: Load, variant: str) -> None:
    weights = load(variant)
    tokens = torch.randn(TOKENS, 1, weights.config.hidden_size)
    given = tokens.clone()

    through_runs = run_tokens(weights, weights.runs, tokens)

    through_layers = run_tokens(weights, [LayerRun(0, weights.blocks)], tokens)
    assert off(through_runs, through_layers) < TOLERANCE
    assert torch.equal(tokens, given)


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_family_without_experts_is_one_call(load: Load, variant: str) -> None:
    weights = load(variant)

    assert [type(run).__name__ for run in weights.runs] == ["GeneratedRun"]


@pytest.mark.parametrize("variant", MIXTURES)
def test_what_is_before_experts_is_generated_too(load: Load, variant: str) -> None:
    weights = load(variant)

    assert {type(run).__name__ for run in weights.runs} == {"GeneratedRun"}
