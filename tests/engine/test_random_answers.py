"""Random models, cut, batched, trimmed and replayed at random, give each token the bits that it has alone.

The seed is in the name of the test: it repeats a run.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from chosen_kernels import compute_with
from kernel_paths import BEST
from model_variants import VARIANTS
from tiny_models import Reference, has_fixed_heads, make_model, whole_blocks
from torch import Tensor

from potluck.engine.kernels.called.generated import GeneratedKernels
from potluck.engine.payload import Activations
from potluck.engine.session import Output, StepTokens
from potluck.engine.stage import Stage
from potluck.ids import SessionId
from potluck.model.schemes import PACKED_SCHEMES, Cache, Scheme

SLACK, CHUNK = 12, 40
SIZES = [1, 1, 1, 2, 5, 13, CHUNK]
FAST, ALL = 1, 12
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FAST)) for seed in range(ALL)]


class Chain:
    """Stages one after the other, with several sessions."""

    def __init__(self, stages: Sequence[Stage], names: Sequence[SessionId]) -> None:
        self._stages, self._number = list(stages), 0
        self.positions = dict.fromkeys(names, 0)
        for name in names:
            self.forget(name)

    def forget(self, name: SessionId) -> None:
        for stage in self._stages:
            stage.open(name, epoch=1)
        self.positions[name] = 0

    def trim(self, name: SessionId, position: int) -> None:
        """Go back to this position, or to one before it from where all stages can go on."""
        for stage in self._stages * 2:  # a stage that goes back further takes those before it along
            stage.trim(name, position, epoch=1)
            position = stage.position(name)
        self.positions[name] = position

    def run(self, parts: dict[SessionId, Tensor]) -> dict[SessionId, Tensor]:
        """The last hidden states of the next tokens of some sessions, computed together."""
        self._number += 1
        inputs = {name: Activations.of(ids) for name, ids in parts.items()}
        for stage in self._stages:
            steps = [
                StepTokens(name, given, 1, self._number, self.positions[name], None)
                for name, given in inputs.items()
            ]
            for step, output in zip(steps, stage.forward_together(steps), strict=True):
                assert isinstance(output, Output), output
                assert output.hidden is not None
                inputs[step.session] = output.hidden
        for name, ids in parts.items():
            self.positions[name] += len(ids)
        return {name: given.tensor for name, given in inputs.items()}


BY_TORCH = ("deepseek 3, dense, odd sizes, halves",)  # no kernel computes its attention


def some_model(rng: random.Random, folder: Path) -> Reference:
    variant = rng.choice([one for one in sorted(VARIANTS) if one not in BY_TORCH])
    changes: dict[str, Any] = {"intermediate_size": rng.randrange(20, 130)}
    if not has_fixed_heads(variant):
        changes["hidden_size"] = rng.choice([32, 48, 64, 96])
    if rng.random() < 0.5:
        changes = whole_blocks(variant)
    return make_model(variant, folder, changes=changes, seed=rng.randrange(1000))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_token_has_the_same_bits_whatever_happens_around_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    scheme: Scheme = rng.choice([*PACKED_SCHEMES, "f32"])
    cache: Cache = rng.choice(["full", "int8"])
    reference = some_model(rng, tmp_path)
    layers = reference.config.num_layers
    prompts = {
        SessionId(str(index)): reference.prompt(rng.randrange(10, 80), seed=index)
        for index in range(rng.randrange(2, 9))
    }
    names = list(prompts)

    def chain(cuts: Sequence[int], threads: int) -> Chain:
        kernels = GeneratedKernels(BEST, threads)
        compute_with(monkeypatch, kernels)
        bounds = [0, *cuts, layers]
        stages = [
            reference.stage(*span, head=False, scheme=scheme, cache=cache, slack=SLACK, chunk=CHUNK)
            for span in pairwise(bounds)
        ]
        assert all(stage.is_exact_in_chunks for stage in stages)
        return Chain(stages, names)

    alone = chain([], 1)
    expected = {
        name: torch.cat([alone.run({name: token})[name] for token in ids.split(1)])
        for name, ids in prompts.items()
    }

    some = chain(sorted(rng.sample(range(1, layers), rng.randrange(layers))), rng.choice([1, 2]))
    while unfinished := [name for name in names if some.positions[name] < len(prompts[name])]:
        parts: dict[SessionId, Tensor] = {}
        for name in rng.sample(unfinished, rng.randrange(1, len(unfinished) + 1)):
            parts[name] = prompts[name][some.positions[name] :][: rng.choice(SIZES)]
        before = dict(some.positions)
        for name, hidden in some.run(parts).items():
            assert torch.equal(hidden, expected[name][before[name] : some.positions[name]])
        name, event = rng.choice(names), rng.random()
        if event < 0.05:
            some.forget(name)
        elif event < 0.3:
            some.trim(name, max(0, some.positions[name] - rng.randrange(1, SLACK)))
