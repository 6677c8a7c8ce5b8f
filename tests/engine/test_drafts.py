"""Guesses at tokens change how many steps an answer takes, and nothing else of it."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from tiny_models import SESSION, Reference, make_model, whole_blocks

from potluck.engine.payload import Activations
from potluck.engine.sampling.sampler import Choice
from potluck.engine.session import Output, StepTokens
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError, NeedReplayError, PromptError
from potluck.model.schemes import Scheme
from potluck.wire.activation_messages import Sampling, Scoring, TokenBias

PROMPT, COUNT = 30, 24
SAMPLED = Sampling(
    temperature=1.5,
    top_p=0.95,
    min_p=0.01,
    seed=11,
    logprobs=3,
    logit_bias=(TokenBias(token_id=7, bias=2.0),),
)
PENALISED = Sampling(
    temperature=0.5,
    top_k=40,
    seed=3,
    repetition_penalty=1.3,
    presence_penalty=0.5,
    frequency_penalty=0.7,
    answer_start=PROMPT,
)


class Chain:
    """Stages that answer a prompt, in steps of one token or with guesses."""

    def __init__(self, *stages: Stage) -> None:
        self.stages = stages
        self.steps = 0
        for stage in stages:
            stage.open(SESSION, epoch=1)

    def step(
        self, tokens: Sequence[int], position: int, sampling: Sampling, drafts: Sequence[int] = ()
    ) -> Output:
        self.steps += 1
        inputs = Activations.of(torch.tensor([*tokens, *drafts], dtype=torch.int32))
        output = Output(position=position)
        for stage in self.stages:
            step = StepTokens(
                SESSION, inputs, 1, self.steps, position, sampling, drafts=tuple(drafts)
            )
            (found,) = stage.forward_together((step,))
            if isinstance(found, Exception):
                raise found
            output, inputs = found, found.hidden or inputs
        return output

    def answer(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        draft: Callable[[int], Sequence[int]] = lambda _: (),
    ) -> list[Choice]:
        """An answer of at least `COUNT` tokens, with the guesses that `draft` makes where the next token stands."""
        first = sampling
        if sampling.needs_history:
            first = msgspec.structs.replace(sampling, history=tuple(prompt))
        output = self.step(prompt, 0, first)
        chosen: list[Choice] = []
        while True:
            assert output.choice is not None
            chosen += [*output.accepted, output.choice]
            assert len(prompt) + len(chosen) == output.position + 1
            if len(chosen) >= COUNT:
                return chosen
            guesses = draft(len(chosen))
            output = self.step([chosen[-1].token_id], output.position, sampling, guesses)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reference]:
    """Make models whose layers are generated; the same one is made once."""

    @cache
    def make(family: str) -> Reference:
        return make_model(family, tmp_path_factory.mktemp("model"), changes=whole_blocks(family))

    return make


@pytest.fixture
def whole_llama(generated: Callable[[str], Reference]) -> Reference:
    return generated("llama")


def stages_of(reference: Reference, scheme: Scheme, cuts: Sequence[int] = ()) -> list[Stage]:
    bounds = [0, *cuts, reference.config.num_layers]
    return [reference.stage(*pair, scheme=scheme) for pair in pairwise(bounds)]


@pytest.mark.parametrize(
    "sampling", [Sampling(), SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
@pytest.mark.parametrize(
    ("family", "scheme", "cuts"),
    [("llama", "int4", ()), ("llama", "f32", (1, 3)), ("gemma 2", "int8", (2,))],
    ids=str,
)  # fmt: skip
def test_an_answer_is_the_same_with_guesses_that_are_right_wrong_or_both(
    generated: Callable[[str], Reference],
    family: str,
    scheme: Scheme,
    cuts: Sequence[int],
    sampling: Sampling,
) -> None:
    reference = generated(family)
    prompt = reference.prompt(PROMPT).tolist()
    alone = Chain(*stages_of(reference, scheme, cuts))
    expected = alone.answer(prompt, sampling)
    right = [choice.token_id for choice in expected]
    right += [0] * 8

    def guess(place: int) -> Sequence[int]:
        guesses = right[place : place + place % 6]
        if place % 4 == 1 and len(guesses) > 2:
            guesses[2] = (guesses[2] + 1) % 100
        return guesses

    with_guesses = Chain(*stages_of(reference, scheme, cuts))
    assert all(stage.takes_drafts for stage in with_guesses.stages)
    found = with_guesses.answer(prompt, sampling, guess)

    assert found[:COUNT] == expected
    assert with_guesses.steps < alone.steps
    # What is cached is the same too: both go on alike, in steps of one token.
    end = PROMPT + COUNT - 1
    for chain in (alone, with_guesses):
        for stage in chain.stages:
            assert stage.position(SESSION) >= end
            if stage.position(SESSION) > end:
                stage.trim(SESSION, end, epoch=1)
    greedy = Sampling(logprobs=5)
    going_on = [chain.step([right[COUNT - 1]], end, greedy) for chain in (alone, with_guesses)]
    assert going_on[0] == going_on[1]


def test_only_the_guesses_of_the_last_step_are_forgotten_without_being_told(
    whole_llama: Reference,
) -> None:
    chain = Chain(*stages_of(whole_llama, "f32", (2,)))
    chain.step(whole_llama.prompt(10).tolist(), 0, Sampling())
    first = chain.stages[0]
    chain.step([1], 10, Sampling(), (2, 3, 4))
    assert first.position(SESSION) == 14

    with pytest.raises(NeedReplayError):
        chain.step([1], 10, Sampling())
    assert first.position(SESSION) == 14
    chain.step([1], 11, Sampling())
    with pytest.raises(NeedReplayError):
        chain.step([1], 11, Sampling())


def test_a_repeated_step_with_guesses_has_the_same_answer(whole_llama: Reference) -> None:
    (stage,) = stages_of(whole_llama, "f32")
    stage.open(SESSION, epoch=1)
    inputs: Any = whole_llama.prompt(10)
    stage.forward(SESSION, inputs, epoch=1, step=0, position=0)
    tokens = Activations.of(torch.tensor([1, 2, 3], dtype=torch.int32))
    step = StepTokens(SESSION, tokens, 1, 1, 10, Sampling(), drafts=(2, 3))

    first, second = stage.forward_together((step,)), stage.forward_together((step,))

    assert first == second


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"drafts": (2,)}, InvalidStepError),
        ({"drafts": (2, 3, 4)}, InvalidStepError),
        ({"drafts": (2, 1 << 20)}, PromptError),
        ({"sampling": None}, InvalidStepError),
        ({"sampling": Sampling(allowed=(1, 2))}, InvalidStepError),
        ({"sampling": Sampling(embeds=True)}, InvalidStepError),
        ({"scoring": Scoring(targets=(1,))}, InvalidStepError),
    ],
    ids=str,
)
def test_guesses_that_cannot_be_computed_are_refused(
    whole_llama: Reference, changes: dict[str, Any], error: type[Exception]
) -> None:
    (stage,) = stages_of(whole_llama, "f32")
    stage.open(SESSION, epoch=1)
    tokens = Activations.of(torch.tensor([1, 2, 3], dtype=torch.int32))
    step = StepTokens(SESSION, tokens, 1, 1, 0, Sampling(), drafts=(2, 3))

    (found,) = stage.forward_together((step._replace(**changes),))

    assert isinstance(found, error)
    assert stage.position(SESSION) == 0


@pytest.mark.parametrize(
    ("family", "scheme"), [("qwen 3 next, odd", "int8"), ("llama", "bf16")], ids=str
)
def test_a_stage_takes_no_guesses_that_it_could_not_forget_or_whose_bits_would_differ(
    generated: Callable[[str], Reference], family: str, scheme: Scheme
) -> None:
    stage = generated(family).stage(scheme=scheme)
    stage.open(SESSION, epoch=1)
    tokens = Activations.of(torch.tensor([1, 2], dtype=torch.int32))
    step = StepTokens(SESSION, tokens, 1, 1, 0, Sampling(), drafts=(2,))

    (found,) = stage.forward_together((step,))

    assert not stage.takes_drafts
    assert isinstance(found, InvalidStepError)
