"""Choices follow the distribution they are told, and depend on seed and position alone."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from potluck.engine import sampler as sampler_module
from potluck.engine.sampler import choose, uniform
from potluck.errors import EngineError
from potluck.wire.messages import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def tokens(logits: Tensor, sampling: Sampling, count: int = 4000) -> Counter[int]:
    return Counter(
        choose(logits, sampling, position=position, history=()).token_id
        for position in range(count)
    )


def probabilities(logits: Tensor) -> list[float]:
    return logits.double().softmax(-1).tolist()


def plain(logits: Tensor, sampling: Sampling, history: Sequence[int]) -> npt.NDArray[np.float64]:
    """What each token weighs, as the definitions say it, in floats of 64 bits."""
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
    cumulative = plain(logits, sampling, history).cumsum()
    target = uniform(sampling.seed, position) * cumulative[-1]
    return int(np.searchsorted(cumulative, target, side="right"))


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
    """Logits like those of a model, or such as no model should have."""
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
    for _ in range(10 if size > 1000 else 80):
        row, sampling = row_of(kind, size, rng), some_sampling(rng)
        history = [rng.randrange(size) for _ in range(10)] if "finit" not in kind else ()
        position = rng.randrange(1 << 20)

        chosen = choose(row, sampling, position=position, history=history).token_id

        assert chosen == plain_choice(row, sampling, position, history), sampling


def test_a_choice_among_a_whole_vocabulary_is_the_one_of_its_plain_definition() -> None:
    rng = random.Random(3)
    for position in range(4):
        row = row_of(KINDS[position % 2], 128_256, rng)
        for top_p in (1.0, 0.95):
            sampling = Sampling(temperature=0.8, top_p=top_p)

            chosen = choose(row, sampling, position=position, history=()).token_id

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

    sampler_module._weigh(logits, best, temperature, weights)

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

        sampler_module._weigh(logits, best, temperature, weights)

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
        [choose(logits, sampling, position=at, history=(1, 2)).token_id for at in range(3)]
        for sampling in samplings
    ]

    assert drawn == [[4900, 4412, 706], [4900, 4412, 706], [4867, 4346, 765], [4900, 4406, 707]]


def test_threads_that_choose_at_once_do_not_disturb_each_other() -> None:
    rows = [row_of("flat", 20_000, random.Random(seed)) for seed in range(2)]
    sampling = Sampling(temperature=1.0, top_p=0.9, logprobs=2)

    def run(row: Tensor) -> list[object]:
        return [choose(row, sampling, position=at, history=()) for at in range(40)]

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(run, rows))

    assert together == [run(row) for row in rows]


def assert_close(drawn: Counter[int], expected: list[float]) -> None:
    """Every frequency within five standard deviations of its probability."""
    count = drawn.total()
    for token, p in enumerate(expected):
        deviation = math.sqrt(p * (1 - p) / count)
        assert abs(drawn[token] / count - p) <= 5 * deviation


def test_a_temperature_of_zero_takes_the_best() -> None:
    assert tokens(LOGITS, Sampling(), 5) == {0: 5}


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    assert_close(tokens(LOGITS, Sampling(temperature=1.0)), probabilities(LOGITS))


def test_a_higher_temperature_flattens_the_distribution() -> None:
    assert_close(tokens(LOGITS, Sampling(temperature=3.0)), probabilities(LOGITS / 3))


def test_a_tiny_temperature_is_greedy() -> None:
    assert tokens(LOGITS, Sampling(temperature=1e-300), 50) == {0: 50}


def test_top_k_leaves_the_k_best() -> None:
    drawn = tokens(LOGITS, Sampling(temperature=1.0, top_k=3))

    assert_close(drawn, [*probabilities(LOGITS[:3]), 0, 0, 0])
    assert set(drawn) == {0, 1, 2}


def test_top_p_leaves_the_smallest_set_that_has_p() -> None:
    # 0.55, 0.20, 0.12, …: the first two have 0.75, the first three 0.87.
    assert set(tokens(LOGITS, Sampling(temperature=1.0, top_p=0.8))) == {0, 1, 2}
    assert set(tokens(LOGITS, Sampling(temperature=1.0, top_p=0.7))) == {0, 1}
    assert set(tokens(LOGITS, Sampling(temperature=1.0, top_p=1e-9))) == {0}


def test_top_p_is_of_what_top_k_left() -> None:
    # Of the three best the first two have 0.86.
    assert set(tokens(LOGITS, Sampling(temperature=1.0, top_k=3, top_p=0.8))) == {0, 1}


def test_min_p_leaves_what_is_not_much_less_likely_than_the_best() -> None:
    assert set(tokens(LOGITS, Sampling(temperature=1.0, min_p=0.3))) == {0, 1}
    assert set(tokens(LOGITS, Sampling(temperature=1.0, min_p=1.0))) == {0}


def test_top_p_of_a_flat_distribution_looks_beyond_the_first_candidates() -> None:
    flat = torch.zeros(5000) - torch.arange(5000) * 1e-5

    drawn = tokens(flat, Sampling(temperature=1.0, top_p=0.5), 2000)

    assert max(drawn) < 2500
    assert max(drawn) > 2000


def test_equal_logits_are_cut_off_together() -> None:
    equal = torch.tensor([1.0, 3.0, 3.0, 3.0, 0.0])

    assert set(tokens(equal, Sampling(temperature=1.0, top_k=2), 300)) == {1, 2, 3}


def test_a_repetition_penalty_lowers_what_occurred_whatever_its_sign() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0, -1.1])

    def best(ids: list[int], history: tuple[int, ...]) -> int:
        sampling = Sampling(repetition_penalty=1.5)
        return ids[choose(logits[ids], sampling, position=0, history=history).token_id]

    assert best([0, 1], (0,)) == 1
    assert best([2, 3], (0, 0)) == 3
    assert best([0, 1], ()) == 0


@pytest.mark.parametrize("penalty", [1e-320, 1e-30, 100.0])
def test_an_absurd_penalty_still_gives_a_token(penalty: float) -> None:
    sampling = Sampling(repetition_penalty=penalty, temperature=1.0)

    assert choose(LOGITS, sampling, position=0, history=(1, 5)).token_id in range(6)


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    expected = LOGITS.log_softmax(-1).tolist()
    sampling = Sampling(temperature=2.0, top_k=2, repetition_penalty=3.0, logprobs=3)

    choice = choose(LOGITS, sampling, position=4, history=(0, 1))

    assert choice.logprob == pytest.approx(expected[choice.token_id])
    assert [token for token, _ in choice.top] == [0, 1, 2]
    assert [logprob for _, logprob in choice.top] == pytest.approx(expected[:3])


def test_logprobs_of_the_chosen_alone() -> None:
    choice = choose(LOGITS, Sampling(logprobs=0), position=0, history=())

    assert choice.logprob is not None
    assert choice.top == ()


def test_more_logprobs_than_tokens_are_all_of_them() -> None:
    assert len(choose(LOGITS, Sampling(logprobs=20), position=0, history=()).top) == 6


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_logits_that_are_not_numbers_are_an_error(
    value: float, temperature: float, penalty: float
) -> None:
    logits = LOGITS.clone()
    logits[3] = value
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty, logprobs=1)

    with pytest.raises(EngineError, match="not numbers"):
        choose(logits, sampling, position=0, history=(3,))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_which_none_is_finite_are_an_error(temperature: float) -> None:
    logits = torch.full((5,), -math.inf)

    with pytest.raises(EngineError, match="not numbers"):
        choose(logits, Sampling(temperature=temperature), position=0, history=())


def test_of_equal_logits_the_first_is_the_best() -> None:
    equal = torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0])

    choice = choose(equal, Sampling(logprobs=2), position=0, history=())

    assert choice.token_id == 1
    assert [token for token, _ in choice.top] == [1, 2]


def test_logits_are_not_changed() -> None:
    logits = LOGITS.double()
    before = logits.clone()

    choose(logits, Sampling(temperature=0.5, repetition_penalty=2.0), position=0, history=(0,))

    assert torch.equal(logits, before)


def test_the_random_number_is_the_same_on_every_machine() -> None:
    # A change of these breaks conversations that two versions of the program continue.
    assert uniform(0, 0) == 0.6524484863740322
    assert uniform(7, 1000) == 0.3678678459230782


def test_random_numbers_fill_the_interval_evenly() -> None:
    for seed in (0, 1, 2**63 - 1):
        numbers = [uniform(seed, position) for position in range(10_000)]
        buckets = Counter(int(number * 20) for number in numbers)
        assert all(0 <= number < 1 for number in numbers)
        assert all(abs(count - 500) < 5 * math.sqrt(500) for count in buckets.values())
        assert len(set(numbers)) == len(numbers)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    position=st.integers(0, 2**24),
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 12),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    penalty=st.floats(0, 100, exclude_min=True),
    logits=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=10),
)
def test_every_sampling_that_the_wire_allows_gives_a_token_and_the_same_again(
    seed: int,
    position: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    logits: list[float],
) -> None:
    row = torch.tensor(logits)
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=penalty,
        seed=seed,
        logprobs=2,
    )

    first = choose(row, sampling, position=position, history=(0,))

    assert 0 <= first.token_id < len(logits)
    assert first == choose(row, sampling, position=position, history=(0,))
