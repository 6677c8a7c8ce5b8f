"""Choices are those of their plain definition, to the last bit and on every machine."""

import math
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from potluck.engine.sampling.gumbel import draw_key, gumbel
from potluck.engine.sampling.sampler import Choice, Sampler
from potluck.wire.activation_messages import Sampling


def plain(logits: Tensor, sampling: Sampling, history: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the weight of each token, computed in 64 bits as the parameters are defined."""
    values = logits.double().numpy().copy()
    for token in set(history):
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    values = (values - values.max()) / sampling.temperature
    if 0 < sampling.top_k < len(values):
        values[values < np.sort(values)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        ranked = np.sort(values)[::-1]
        better = np.exp(ranked).cumsum() - np.exp(ranked)
        values[values < ranked[better < sampling.top_p * np.exp(values).sum()][-1]] = -np.inf
    weights = np.exp(values)
    weights[weights < sampling.min_p] = 0
    return weights


def plain_choice(
    logits: Tensor, sampling: Sampling, position: int, history: Sequence[int] = ()
) -> int:
    noise = gumbel(draw_key(sampling.seed, position), np.arange(len(logits)))
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(plain(logits, sampling, history)) + noise))


def some_sampling(rng: random.Random) -> Sampling:
    return Sampling(
        temperature=rng.choice([0.05, 0.6, 1.0, 3.0, 50.0]),
        top_k=rng.choice([0, 0, 1, 3, 40, 3000]),
        top_p=rng.choice([1.0, 1.0, 0.999, 0.95, 0.5, 1e-6]),
        min_p=rng.choice([0.0, 0.0, 1e-9, 0.05, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        seed=rng.getrandbits(63),
    )


def row_of(kind: str, size: int, rng: random.Random) -> Tensor:
    """Return logits like those of a model, or such as no model should have."""
    torch.manual_seed(rng.getrandbits(32))
    row = torch.randn(size) * 2
    match kind:
        case "flat":
            return row * 0.01
        case "peaked":
            row[torch.randint(size, (20,))] += torch.linspace(4, 20, 20)
        case "with ties":
            return row.round()
        case "equal":
            return torch.full((size,), rng.uniform(-20, 20))
        case "half infinitely small":
            row[torch.rand(size) < 0.5] = -math.inf
            row[rng.randrange(size)] = 1.0
        case "one finite":
            row = torch.full((size,), -math.inf)
            row[rng.randrange(size)] = rng.uniform(-20, 20)
        case "far apart":
            return row * 1e4
        case _:
            raise AssertionError(kind)
    return row


KINDS = (
    "flat", "peaked", "with ties", "equal", "half infinitely small", "one finite", "far apart",
)  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 40_000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_is_the_one_of_its_plain_definition(kind: str, size: int) -> None:
    rng = random.Random(f"{kind} {size}")
    for _ in range(5 if size > 1000 else 40):
        row, sampling = row_of(kind, size, rng), some_sampling(rng)
        history = [rng.randrange(size) for _ in range(10)] if "finit" not in kind else ()
        position = rng.randrange(1 << 20)

        chosen = Sampler().choose(row, sampling, position=position, history=history).token_id

        assert chosen == plain_choice(row, sampling, position, history), sampling


def test_a_choice_among_a_whole_vocabulary_is_the_one_of_its_plain_definition() -> None:
    rng = random.Random(3)
    for position in range(4):
        row = row_of(KINDS[position % 2], 128_256, rng)
        for top_p in (1.0, 0.95):
            sampling = Sampling(temperature=0.8, top_p=top_p)

            chosen = Sampler().choose(row, sampling, position=position, history=()).token_id

            assert chosen == plain_choice(row, sampling, position)


def test_filters_leave_what_those_of_transformers_leave() -> None:
    rng = random.Random(0)
    for _ in range(100):
        row, sampling = row_of("peaked", 300, rng), some_sampling(rng)
        history = [rng.randrange(300) for _ in range(10)]
        steps = LogitsProcessorList()
        steps.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
        steps.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            steps.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            steps.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            steps.append(MinPLogitsWarper(sampling.min_p))

        theirs = steps(torch.LongTensor([history]), row.double()[None])[0].softmax(-1)

        ours = plain(row, sampling, history)
        torch.testing.assert_close(torch.from_numpy(ours / ours.sum()), theirs)


def test_weights_are_those_of_one_operation_after_the_other() -> None:
    """Python's floats are those of IEEE 754: so is every machine's choice."""
    logits = np.random.default_rng(0).normal(0, 6, 20_000).astype(np.float32)
    best, temperature = float(logits.max()), 0.7
    weights = np.empty(len(logits), np.int64)

    Sampler()._weigh(logits, best, temperature, weights)

    expected: list[int] = []
    for logit in logits.tolist():
        x = (best - logit) / (temperature * 256)
        power = ((((x * (1 / 120) + 1 / 24) * x + 1 / 6) * x + 1 / 2) * x + 1.0) * x + 1.0
        for _ in range(8):
            power *= power
        expected.append(int(2.0**41 / power))
    assert weights.tolist() == expected


def test_weights_are_exponentials_and_never_less_for_a_larger_logit() -> None:
    logits = np.sort(np.random.default_rng(0).normal(0, 8, 20_000)).astype(np.float32)
    best = float(logits[-1])
    for temperature in (0.01, 0.7, 100.0):
        weights = np.empty(len(logits), np.int64)

        Sampler()._weigh(logits, best, temperature, weights)

        exact = np.exp((logits.astype(np.float64) - best) / temperature)
        assert np.abs(weights * 2.0**-41 - exact).max() < 2.0**-40
        assert (np.diff(weights) >= 0).all()


def test_the_tokens_are_the_same_on_every_machine() -> None:
    # A change of these breaks conversations that two versions of the program continue.
    logits = torch.tensor([(token * 7919 % 1009) / 64 for token in range(5000)])
    samplings = [
        Sampling(temperature=0.9, seed=5),
        Sampling(temperature=0.9, seed=5, top_p=0.9),
        Sampling(temperature=0.9, seed=5, top_k=50, top_p=0.9),
        Sampling(temperature=5.0, seed=5, min_p=0.1, repetition_penalty=1.2),
    ]

    drawn = [
        [
            Sampler().choose(logits, sampling, position=at, history=(1, 2)).token_id
            for at in range(3)
        ]
        for sampling in samplings
    ]

    assert drawn == [[159, 3581, 2269], [159, 3581, 2269], [3337, 3581, 4346], [159, 128, 1011]]


def test_what_a_sampler_chose_before_does_not_change_what_it_chooses() -> None:
    sizes = (20_000, 500, 30_000)
    rows = [row_of("flat", size, random.Random(seed)) for seed, size in enumerate(sizes)]
    sampling = Sampling(temperature=1.0, top_p=0.9, logprobs=2)
    used = Sampler()

    def run(sampler: Sampler, at: int) -> list[Choice]:
        return [sampler.choose(row, sampling, position=at, history=()) for row in rows]

    assert [run(used, at) for at in range(10)] == [run(Sampler(), at) for at in range(10)]
