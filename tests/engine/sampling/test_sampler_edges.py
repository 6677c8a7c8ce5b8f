"""Choices at the limits of filters and of random numbers, and their log probabilities."""

import math

import numpy as np
import pytest
import torch

from potluck.engine.sampling import sampler
from potluck.engine.sampling.sampler import Sampler
from potluck.wire.activation_messages import Sampling


@pytest.mark.parametrize(
    ("logits", "how"),
    [
        ([-math.inf, 1.0, -math.inf], {}),
        ([0.0, 3.0, 1.0], {"top_p": 0.3}),
        ([0.0, 3.0, 1.0], {"min_p": 0.9}),
        ([0.0, 3.0, 1.0], {"top_k": 1}),
    ],
)
def test_nothing_draws_a_token_that_was_left_out(
    logits: list[float], how: dict[str, float]
) -> None:
    sampling = Sampling(temperature=5.0, **how)  # pyright: ignore[reportArgumentType]

    drawn = {
        Sampler().choose(torch.tensor(logits), sampling, position=at, history=()).token_id
        for at in range(200)
    }

    assert drawn == {1}


@pytest.mark.parametrize(
    ("top_p", "least"), [(0.25, 4), (0.5, 4), (0.51, 2), (0.75, 2), (0.76, 1), (1.0, 1)]
)
def test_a_nucleus_has_no_more_than_it_needs(top_p: float, least: int) -> None:
    weights = np.array([1, 4, 1, 2], np.int64)

    assert sampler._nucleus(weights, top_p, np.empty(4, np.int64)) == least


@pytest.mark.parametrize("size", [300, 20_000])
@pytest.mark.parametrize("rank", [1, 2, 40, 290])
def test_a_rank_is_that_of_the_sorted_logits(size: int, rank: int) -> None:
    for seed in range(5):
        logits = np.random.default_rng(seed).standard_normal(size, np.float32)

        assert Sampler()._ranked(logits, rank) == np.sort(logits)[-rank]


def test_a_penalty_below_one_favours_what_occurred() -> None:
    sampling = Sampling(repetition_penalty=0.5)

    chosen = Sampler().choose(torch.tensor([1.0, 0.7, -1.0]), sampling, position=0, history=(1,))

    assert chosen.token_id == 1


def test_one_logprob_is_that_of_the_best() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])

    ((token, logprob),) = Sampler().choose(logits, Sampling(logprobs=1), position=0, history=()).top

    assert token == 1
    assert logprob == pytest.approx(logits.log_softmax(-1)[1].item())


def test_of_equal_logprobs_those_of_the_first_tokens_are_told_and_no_more() -> None:
    logits = torch.zeros(200)
    logits[3:57:6], logits[4:58:6] = 2.0, 1.0  # nine of each

    top = Sampler().choose(logits, Sampling(logprobs=20), position=0, history=()).top

    assert [token for token, _ in top] == [*range(3, 57, 6), *range(4, 58, 6), 0, 1]


def test_the_best_on_a_device_has_to_be_finite() -> None:
    assert sampler.Sampler()._best_on_device(torch.tensor([1.0, 3.0, 2.0])) == 1
    for broken in (math.inf, math.nan):
        with pytest.raises(sampler.EngineError, match="not numbers"):
            sampler.Sampler()._best_on_device(torch.tensor([1.0, broken]))
