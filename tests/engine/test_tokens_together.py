"""Tokens of several sessions in one forward pass are what each of them is alone."""

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from stage_steps import GREEDY
from tiny_models import Reference

from potluck.engine.layers.blocks import DecoderLayer
from potluck.engine.payload import Activations
from potluck.engine.session import Output, StepTokens
from potluck.engine.stage import Stage
from potluck.errors import NeedReplayError, PromptError, UnknownSessionError
from potluck.ids import SessionId
from potluck.model.schemes import Scheme
from potluck.wire.activation_messages import Sampling

MakeReference = Callable[..., Reference]

NAMES = [SessionId(name) for name in "abcd"]
# A prompt of each session: they are at different positions, one of them past its window.
LENGTHS = (3, 17, 1, 40)


class Sessions:
    """Some stages with the same sessions at the same positions."""

    def __init__(self, reference: Reference, *stages: Stage) -> None:
        self.reference, self.stages = reference, stages
        for name, tokens in zip(NAMES, LENGTHS, strict=True):
            inputs: Any = reference.prompt(tokens, seed=tokens)
            for stage in stages:
                stage.open(name, epoch=1)
                output = stage.forward(name, inputs, epoch=1, step=0, position=0)
                inputs = output.hidden if output.hidden is not None else inputs

    def steps(self, number: int = 1, sampling: Sampling = GREEDY) -> list[StepTokens]:
        """The next token of each session."""
        return [
            StepTokens(
                name,
                Activations.of(self.reference.prompt(1, seed=10 * number + tokens)),
                1,
                number,
                tokens + number - 1,
                sampling,
            )
            for name, tokens in zip(NAMES, LENGTHS, strict=True)
        ]


def alone(stage: Stage, tokens: StepTokens) -> Output:
    return stage.forward(
        tokens.session, tokens.inputs, epoch=1, step=tokens.step, position=tokens.position,
        sampling=tokens.sampling,
    )  # fmt: skip


def assert_same(ours: Output | Exception, theirs: Output, *, exactly: bool = False) -> None:
    """Compare results of the same step; `exactly`: bit by bit."""
    assert isinstance(ours, Output), ours
    if exactly and theirs.hidden is not None:
        assert ours.hidden is not None
        assert torch.equal(ours.hidden.tensor, theirs.hidden.tensor)
    if exactly:
        assert ours.choice == theirs.choice
    assert ours.position == theirs.position
    if theirs.hidden is not None:
        assert ours.hidden is not None
        assert ours.hidden.shape == theirs.hidden.shape
        assert torch.allclose(ours.hidden.tensor, theirs.hidden.tensor, rtol=1e-3, atol=1e-4)
    if theirs.choice is not None:
        assert ours.choice is not None
        assert ours.choice.token_id == theirs.choice.token_id
        mine, other = (
            torch.tensor([p for _, p in each.top]) for each in (ours.choice, theirs.choice)
        )
        assert torch.allclose(mine, other, atol=1e-3)


@pytest.mark.parametrize(
    ("variant", "scheme"),
    [
        ("llama", "f32"),
        ("llama", "int4"),
        ("gemma 2", "f32"),
        ("mixtral", "int8"),
        ("deepseek 3", "int8"),
        ("llama", "bf16"),
        ("gemma 2", "bf16"),
        ("mixtral", "bf16"),
        ("gpt-oss", "bf16"),
        ("granite, tied, biases", "f16"),
        ("gemma 4, experts", "f32"),
        ("gemma 4, experts", "bf16"),
    ],
)
def test_tokens_together_have_the_bits_that_they_have_alone(
    make_reference: MakeReference,
    variant: str,
    scheme: Scheme,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reference = make_reference(variant)
    for head in (False, True):
        ours, theirs = (
            Sessions(reference, reference.stage(scheme=scheme, head=head)) for _ in range(2)
        )
        for number in (1, 2, 3):
            together = ours.stages[0].forward_together(ours.steps(number))
            for result, tokens in zip(together, theirs.steps(number), strict=True):
                assert_same(result, alone(theirs.stages[0], tokens), exactly=True)
    failed = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not failed  # all were computed together, and not one by one after a failure


def test_a_session_goes_on_alone_after_a_token_that_was_computed_with_others(
    llama: Reference,
) -> None:
    ours, theirs = Sessions(llama, llama.stage()), Sessions(llama, llama.stage())
    ours.stages[0].forward_together(ours.steps(1))
    for tokens in theirs.steps(1):
        alone(theirs.stages[0], tokens)

    for mine, other in zip(ours.steps(2), theirs.steps(2), strict=True):
        assert_same(alone(ours.stages[0], mine), alone(theirs.stages[0], other))


def test_a_step_that_is_refused_does_not_keep_the_others_from_being_computed(
    llama: Reference,
) -> None:
    ours, theirs = Sessions(llama, llama.stage()), Sessions(llama, llama.stage())
    steps = ours.steps()
    wrong = Activations.of(torch.tensor([llama.config.vocab_size]))
    steps[0] = steps[0]._replace(position=99)
    steps[1] = steps[1]._replace(inputs=wrong)
    steps[2] = steps[2]._replace(session=SessionId("nobody"))

    refused = ours.stages[0].forward_together(steps)

    kinds = [NeedReplayError, PromptError, UnknownSessionError, Output]
    assert [type(each) for each in refused] == kinds
    assert cast("NeedReplayError", refused[0]).data["position"] == LENGTHS[0]
    assert_same(refused[3], alone(theirs.stages[0], theirs.steps()[3]))
    assert [ours.stages[0].position(name) for name in NAMES] == [3, 17, 1, 41]
    again = ours.stages[0].forward_together(ours.steps()[:2])
    for result, tokens in zip(again, theirs.steps(), strict=False):
        assert_same(result, alone(theirs.stages[0], tokens))


def test_a_repeated_step_is_answered_from_memory_while_others_are_computed(
    llama: Reference,
) -> None:
    ours = Sessions(llama, llama.stage())
    first = ours.stages[0].forward_together(ours.steps(1)[:2])

    both = ours.stages[0].forward_together(ours.steps(1)[:3])

    assert both[:2] == first
    assert isinstance(both[2], Output)


def test_a_token_that_cannot_be_chosen_is_the_failure_of_its_session_alone(
    llama: Reference,
) -> None:
    ours = Sessions(llama, llama.stage())
    steps = ours.steps()
    history = (llama.config.vocab_size,)
    steps[1] = steps[1]._replace(sampling=Sampling(repetition_penalty=1.5, history=history))

    results = ours.stages[0].forward_together(steps)

    assert [type(each) for each in results] == [Output, PromptError, Output, Output]
    assert [ours.stages[0].position(name) for name in NAMES] == [4, 17, 2, 41]


class OnlyAlone:
    """An MLP that has memory for one token."""

    nbytes = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            raise MemoryError
        return torch.zeros_like(x)


def test_tokens_without_memory_to_be_computed_together_are_computed_one_by_one(
    llama: Reference,
) -> None:
    ours, theirs = Sessions(llama, llama.stage()), Sessions(llama, llama.stage())
    for each in (ours, theirs):
        weights = each.stages[0].weights
        last = weights.blocks[-1]
        narrow = DecoderLayer(last.spec, last.mixer, cast("Any", OnlyAlone()), last.norms)
        blocks = (*weights.blocks[:-1], narrow)
        (run,) = weights.runs
        cast("Any", run)._blocks = blocks

    results = ours.stages[0].forward_together(ours.steps())

    for result, tokens in zip(results, theirs.steps(), strict=True):
        assert_same(result, alone(theirs.stages[0], tokens))


def test_a_session_whose_memory_another_one_of_the_same_forward_takes_is_replayed(
    llama: Reference,
) -> None:
    lengths = dict(zip(NAMES, (200, 256), strict=False))
    of_tokens = llama.stage(context=2048)._pool._bytes_of
    # The second one outgrows its 256 tokens, and there is no room for 512 beside the first one.
    stage = llama.stage(context=2048, cache_budget=of_tokens(512) + of_tokens(256) - 1)
    for name, tokens in lengths.items():
        stage.open(name, epoch=1)
        stage.forward(name, llama.prompt(tokens), epoch=1, step=0, position=0)
    one = Activations.of(llama.prompt(1))

    results = stage.forward_together(
        [StepTokens(name, one, 1, 1, tokens, GREEDY) for name, tokens in lengths.items()]
    )

    assert isinstance(results[0], NeedReplayError)
    assert results[0].data["position"] == 0
    assert isinstance(results[1], Output)
