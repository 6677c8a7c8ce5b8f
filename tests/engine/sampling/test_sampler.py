"""Choices follow the distribution that is asked for, and depend on seed and position alone."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.engine.sampling.sampler import Sampler
from potluck.errors import EngineError
from potluck.wire.activation_messages import Sampling

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def tokens(logits: Tensor, sampling: Sampling, count: int = 4000) -> Counter[int]:
    return Counter(
        Sampler().choose(logits, sampling, position=position, history=()).token_id
        for position in range(count)
    )


def probabilities(logits: Tensor) -> list[float]:
    return logits.double().softmax(-1).tolist()


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
        return ids[Sampler().choose(logits[ids], sampling, position=0, history=history).token_id]

    assert best([0, 1], (0,)) == 1
    assert best([2, 3], (0, 0)) == 3
    assert best([0, 1], ()) == 0


@pytest.mark.parametrize("penalty", [1e-320, 1e-30, 100.0])
def test_an_absurd_penalty_still_gives_a_token(penalty: float) -> None:
    sampling = Sampling(repetition_penalty=penalty, temperature=1.0)

    assert Sampler().choose(LOGITS, sampling, position=0, history=(1, 5)).token_id in range(6)


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    expected = LOGITS.log_softmax(-1).tolist()
    sampling = Sampling(temperature=2.0, top_k=2, repetition_penalty=3.0, logprobs=3)

    choice = Sampler().choose(LOGITS, sampling, position=4, history=(0, 1))

    assert choice.logprob == pytest.approx(expected[choice.token_id])
    assert [token for token, _ in choice.top] == [0, 1, 2]
    assert [logprob for _, logprob in choice.top] == pytest.approx(expected[:3])


def test_no_further_logprobs_leave_that_of_the_chosen() -> None:
    choice = Sampler().choose(LOGITS, Sampling(logprobs=0), position=0, history=())

    assert choice.logprob is not None
    assert choice.top == ()


def test_more_logprobs_than_tokens_are_all_of_them() -> None:
    assert len(Sampler().choose(LOGITS, Sampling(logprobs=20), position=0, history=()).top) == 6


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
        Sampler().choose(logits, sampling, position=0, history=(3,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_wider_scheme_is_advised_where_there_is_one(dtype: torch.dtype) -> None:
    logits = torch.full((5,), math.nan)

    with pytest.raises(EngineError) as caught:
        Sampler(dtype).choose(logits, Sampling(), position=0, history=())

    assert ("f32" in caught.value.message) == (dtype == torch.float16)
    assert ("damaged" in caught.value.message) == (dtype != torch.float16)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_which_none_is_finite_are_an_error(temperature: float) -> None:
    logits = torch.full((5,), -math.inf)

    with pytest.raises(EngineError, match="not numbers"):
        Sampler().choose(logits, Sampling(temperature=temperature), position=0, history=())


def test_of_equal_logits_the_first_is_the_best() -> None:
    equal = torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0])

    choice = Sampler().choose(equal, Sampling(logprobs=2), position=0, history=())

    assert choice.token_id == 1
    assert [token for token, _ in choice.top] == [1, 2]


def test_logits_are_not_changed() -> None:
    logits = LOGITS.double()
    before = logits.clone()

    Sampler().choose(
        logits, Sampling(temperature=0.5, repetition_penalty=2.0), position=0, history=(0,)
    )

    assert torch.equal(logits, before)


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

    first = Sampler().choose(row, sampling, position=position, history=(0,))

    assert 0 <= first.token_id < len(logits)
    assert first == Sampler().choose(row, sampling, position=position, history=(0,))
