"""What changes logits before a choice: biases, penalties, and the tokens that a grammar allows."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from potluck.engine.sampling.gumbel import draw_key, gumbel
from potluck.engine.sampling.sampler import Sampler
from potluck.engine.step_bounds import StepBounds
from potluck.errors import InvalidStepError, PromptError
from potluck.wire.activation_messages import Sampling, TokenBias

SIZE = 61
BOUNDS = StepBounds(vocabulary=SIZE, hidden=None, chunk=8, context=64)
tokens = st.integers(0, SIZE - 1)
penalties = st.floats(-2, 2, width=16)


def bitmap(allowed: Sequence[int], size: int = SIZE) -> bytes:
    bits = np.zeros(size, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def changed(
    logits: Tensor, sampling: Sampling, history: Sequence[int], answer: Sequence[int]
) -> npt.NDArray[np.float64]:
    """The logits after all changes, in 64 bits, one token after the other."""
    values = logits.double().numpy().copy()
    for entry in sampling.logit_bias:
        values[entry.token_id] += entry.bias
    for token in set(history):
        penalty = sampling.repetition_penalty
        values[token] *= 1 / penalty if values[token] > 0 else penalty
    for token, count in Counter(answer).items():
        values[token] -= sampling.presence_penalty + count * sampling.frequency_penalty
    if (allowed := sampling.allowed) is not None:
        for token in range(len(values)):
            is_in = allowed[token // 8] >> token % 8 & 1 if isinstance(allowed, bytes) else None
            if not (token in allowed if is_in is None else is_in):
                values[token] = -math.inf
    return values


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(tokens, max_size=12),
    st.lists(tokens, max_size=12),
    st.none() | st.sets(tokens, min_size=1),
    st.booleans(),
    st.tuples(penalties, penalties, st.floats(0.5, 2, width=16)),
    st.dictionaries(tokens, st.floats(-100, 100, width=16), max_size=5),
    st.sampled_from([0.0, 0.7, 2.0]),
)
def test_a_choice_is_that_of_the_changed_logits(
    seed: int,
    prompt: list[int],
    answer: list[int],
    allowed: set[int] | None,
    as_bits: bool,
    penalties: tuple[float, float, float],
    biases: dict[int, float],
    temperature: float,
) -> None:
    logits = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    ids = None if allowed is None else tuple(sorted(allowed))
    presence, frequency, repetition = penalties
    sampling = Sampling(
        temperature=temperature,
        seed=seed,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        answer_start=len(prompt),
        logit_bias=tuple(TokenBias(*item) for item in biases.items()),
        allowed=bitmap(ids) if ids is not None and as_bits else ids,
    )
    BOUNDS.check_sampling(sampling)
    history, position = prompt + answer, len(prompt) + len(answer)

    chosen = Sampler().choose(logits, sampling, position=position, history=history).token_id

    scores = changed(logits, sampling, history, answer)
    if temperature:
        noise = gumbel(draw_key(seed, position), np.arange(SIZE))
        scores = scores / temperature + noise
    assert scores[chosen] >= scores.max() - 1e-4
    assert ids is None or chosen in ids


@pytest.mark.parametrize(
    ("size", "draws"), [(8, 1000), pytest.param(64_000, 200, marks=pytest.mark.slow)]
)
def test_filters_leave_what_is_allowed_and_keep_its_shares(size: int, draws: int) -> None:
    logits = torch.zeros(size)
    logits[[1, 5]] = torch.tensor([math.log(3), 0.0])
    logits[7] = 40.0
    for sampling in (
        Sampling(temperature=1.0, allowed=(1, 5)),
        Sampling(temperature=1.0, allowed=bitmap((1, 5), size), top_k=4),
        Sampling(temperature=1.0, allowed=(1, 5), top_p=0.999),
        Sampling(temperature=1.0, allowed=(1, 5), min_p=0.1),
    ):
        drawn = Counter(
            Sampler().choose(logits, sampling, position=at, history=()).token_id
            for at in range(draws)
        )

        assert set(drawn) == {1, 5}
        deviation = math.sqrt(0.75 * 0.25 * draws)
        assert drawn[1] == pytest.approx(0.75 * draws, abs=5 * deviation)


def test_logprobs_are_of_what_is_allowed() -> None:
    logits = torch.tensor([5.0, math.log(3), 0.0, 9.0])

    choice = Sampler().choose(logits, Sampling(allowed=(1, 2), logprobs=4), position=0, history=())

    assert choice.token_id == 1
    assert [token for token, _ in choice.top] == [1, 2]
    assert [math.exp(p) for _, p in choice.top] == pytest.approx([0.75, 0.25])


def test_penalties_count_the_answer_and_not_the_prompt() -> None:
    logits = torch.tensor([2.0, 1.5, 1.0])
    sampling = Sampling(frequency_penalty=0.4, answer_start=3)

    def best(history: Sequence[int]) -> int:
        position = len(history)
        return Sampler().choose(logits, sampling, position=position, history=history).token_id

    assert best((0, 0, 0)) == 0
    assert best((0, 0, 0, 0)) == 0
    assert best((0, 0, 0, 0, 0)) == 1


@pytest.mark.parametrize("start", [0, 5, (1 << 31) - 1])
def test_an_answer_said_to_begin_anywhere_still_gives_a_token(start: int) -> None:
    sampling = Sampling(presence_penalty=1.0, answer_start=start)

    assert Sampler().choose(torch.randn(9), sampling, position=5, history=(1, 2)).token_id < 9


@pytest.mark.parametrize(
    ("sampling", "error", "words"),
    [
        (Sampling(allowed=(3, SIZE)), PromptError, f"token {SIZE}"),
        (Sampling(logit_bias=(TokenBias(SIZE, 1.0),)), PromptError, f"token {SIZE}"),
        (Sampling(history=(SIZE,)), PromptError, f"token {SIZE}"),
        (Sampling(allowed=()), InvalidStepError, "No token is allowed"),
        (Sampling(allowed=bytes(8)), InvalidStepError, "No token is allowed"),
        (Sampling(allowed=b"\xff"), InvalidStepError, "has 1 bytes"),
        (Sampling(allowed=bitmap((1,)) + b"\1"), InvalidStepError, "has 9 bytes"),
        (Sampling(allowed=b"\xff" * 8), InvalidStepError, f"other tokens than the {SIZE}"),
    ],
)
def test_a_sampling_that_is_not_of_this_model_is_refused(
    sampling: Sampling, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        BOUNDS.check_sampling(sampling)
