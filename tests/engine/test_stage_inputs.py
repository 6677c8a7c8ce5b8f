"""A stage refuses wrong inputs with an error that says why, and goes on."""

import math
from collections.abc import Callable

import pytest
import torch
from config_layers import row_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stage_steps import GREEDY, forward
from tiny_models import CONTEXT, SESSION, Reference

from potluck.engine.payload import Activations
from potluck.engine.session import StepTokens
from potluck.engine.stage import Stage
from potluck.errors import (
    EngineError,
    InvalidStepError,
    OutOfMemoryError,
    PotluckError,
    PromptError,
)
from potluck.ids import SessionId
from potluck.model.caches import MAX_CHUNK_TOKENS
from potluck.wire.activation_messages import Sampling, Scoring


@pytest.mark.parametrize("ids", [[-1], [131], [3, 2**31 - 1], [-(2**31)], [-1, 3]])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(stage: Stage, ids: list[int]) -> None:
    with pytest.raises(PromptError, match="131"):
        forward(stage, torch.tensor(ids, dtype=torch.int32), 0)
    assert stage.position(SESSION) == 0


@pytest.mark.parametrize(
    "inputs",
    [
        torch.zeros(0, dtype=torch.int32),
        torch.zeros((), dtype=torch.int32),
        torch.zeros((2, 2), dtype=torch.int32),
        torch.zeros(3),
        torch.zeros(MAX_CHUNK_TOKENS + 1, dtype=torch.int32),
    ],
    ids=["none", "a scalar", "two axes", "floats", "too many"],
)
def test_what_is_not_token_ids_is_refused(stage: Stage, inputs: torch.Tensor) -> None:
    with pytest.raises(InvalidStepError, match="token ids"):
        forward(stage, inputs, 0)


@pytest.mark.parametrize(
    ("targets", "error"), [((1, 2, 3), InvalidStepError), ((131,), PromptError)]
)
def test_targets_are_tokens_that_follow_those_of_the_step(
    stage: Stage, targets: tuple[int, ...], error: type[PotluckError]
) -> None:
    tokens = StepTokens(
        SESSION,
        Activations.of(torch.tensor([1, 2], dtype=torch.int32)),
        epoch=1,
        step=1,
        position=0,
        sampling=None,
        scoring=Scoring(targets=targets),
    )
    (refused,) = stage.forward_together([tokens])
    assert isinstance(refused, error)
    assert stage.position(SESSION) == 0


def test_the_longest_chunk_is_a_chunk(stage: Stage) -> None:
    """The first of all tokens among them: what is wrong with it is that the context is shorter."""
    with pytest.raises(PromptError, match=f"has {MAX_CHUNK_TOKENS}"):
        forward(stage, torch.zeros(MAX_CHUNK_TOKENS, dtype=torch.int32), 0)


@pytest.mark.parametrize(
    "inputs",
    [
        torch.zeros(3, 47),
        torch.zeros(48),
        torch.zeros(0, 48),
        torch.zeros((3, 48), dtype=torch.int32),
        torch.zeros(1, 3, 48),
    ],
    ids=["narrow", "one axis", "none", "integers", "three axes"],
)
def test_what_is_not_hidden_states_is_refused(llama: Reference, inputs: torch.Tensor) -> None:
    stage = llama.stage(2)
    stage.open(SESSION, epoch=1)

    with pytest.raises(InvalidStepError, match="hidden states"):
        forward(stage, inputs, 0)


def test_hidden_states_are_not_changed(llama: Reference) -> None:
    stage = llama.stage(2, 3)
    stage.open(SESSION, epoch=1)
    hidden = torch.randn(5, 48)
    before = hidden.clone()

    output = forward(stage, hidden, 0)

    assert torch.equal(hidden, before)
    assert output.hidden is not None
    assert output.hidden.tensor.shape == (5, 48)


@pytest.mark.parametrize("tokens", [1, 5])
def test_hidden_states_of_16_bits_are_computed_with_as_the_stage_does(
    llama: Reference, tokens: int
) -> None:
    stage = llama.stage(2, 3)
    narrow = torch.randn(tokens, 48).bfloat16()
    outputs: list[torch.Tensor] = []
    for hidden in (narrow, narrow.float()):
        stage.open(SESSION, epoch=1)
        output = forward(stage, hidden, 0).hidden
        assert output is not None
        outputs.append(output.tensor)

    assert torch.equal(*outputs)
    assert outputs[0].dtype == torch.float32


def test_numbers_that_are_none_are_an_error_of_the_step(llama: Reference) -> None:
    stage = llama.stage(2)
    stage.open(SESSION, epoch=1)

    for sampling in (GREEDY, Sampling(temperature=1.0), Sampling(top_p=0.5, temperature=1.0)):
        with pytest.raises(EngineError, match="not numbers"):
            forward(stage, torch.full((1, 48), math.nan), 0, sampling=sampling)


def test_a_full_context_is_refused_with_its_size(llama: Reference, stage: Stage) -> None:
    forward(stage, llama.prompt(CONTEXT), 0)

    with pytest.raises(PromptError, match=f"has {CONTEXT + 1}"):
        forward(stage, llama.prompt(1), CONTEXT)


def test_a_prompt_beyond_the_context_is_refused_before_its_first_chunk(
    llama: Reference, stage: Stage
) -> None:
    with pytest.raises(PromptError, match=f"has {CONTEXT + 1}"):
        forward(stage, llama.prompt(4), 0, prompt_end=CONTEXT + 1)
    assert stage.position(SESSION) == 0


def test_a_device_without_memory_is_an_error_of_the_step(
    llama: Reference, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = llama.prompt(12)
    expected = forward(stage, ids[:6], 0)
    mlp = stage.weights.blocks[2].mlp
    monkeypatch.setattr(mlp, "down", _without_memory)

    with pytest.raises(OutOfMemoryError, match="compute what follows position 6"):
        forward(stage, ids[6:], 6)

    monkeypatch.undo()
    assert stage.position(SESSION) == 6
    after = forward(stage, ids[6:], 6)
    stage.open(SESSION, epoch=1)
    assert forward(stage, ids[:6], 0).choice == expected.choice
    assert forward(stage, ids[6:], 6).choice == after.choice


def _without_memory(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(1 << 60)  # more than any computer has


def test_a_history_with_unknown_tokens_is_refused(llama: Reference, stage: Stage) -> None:
    for history in ((131,), (5, 2**31 - 1), (-1, 5)):
        with pytest.raises(PromptError):
            forward(stage, llama.prompt(4), 0, sampling=Sampling(history=history))
    assert stage.position(SESSION) == 0


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["forward", "trim", "open", "close"]),
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 40),
            st.integers(1, 20),
        ),
        max_size=15,
    )
)
def test_whatever_is_sent_a_stage_computes_right_or_refuses(
    llama: Reference, steps: list[tuple[str, str, int, int]]
) -> None:
    per_token = row_bytes(llama.config, 4) * 2
    stage = llama.stage(0, 2, cache_budget=2 * CONTEXT * per_token)
    fresh = llama.stage(0, 2)
    ids = llama.prompt(CONTEXT)
    for number, (action, name, position, count) in enumerate(steps):
        session = SessionId(name)
        try:
            match action:
                case "forward":
                    position = min(position, stage.position(session) + position % 2)
                    piece = ids[position : position + count]
                    output = forward(stage, piece, position, step=number, session=session)
                case "trim":
                    stage.trim(session, position, epoch=1)
                    continue
                case "open":
                    stage.open(session, epoch=1)
                    continue
                case _:
                    stage.close(session, epoch=1)
                    continue
        except PotluckError:
            continue
        fresh.open(SESSION, epoch=1)
        whole = forward(fresh, ids[: position + count], 0).hidden
        assert whole is not None
        assert output.hidden is not None
        torch.testing.assert_close(
            output.hidden.tensor, whole.tensor[position:], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (None, InvalidStepError),
        (torch.zeros(2, dtype=torch.int32), InvalidStepError),
        (torch.zeros(3), InvalidStepError),
        (torch.tensor([0, 30, 1], dtype=torch.int32), PromptError),
        (torch.tensor([0, -1, 1], dtype=torch.int32), PromptError),
    ],
    ids=["none", "too few", "floats", "beyond the vocabulary", "below it"],
)
def test_a_stage_whose_layer_looks_at_ids_refuses_hidden_states_without(
    make_reference: Callable[[str], Reference],
    ids: torch.Tensor | None,
    error: type[PotluckError],
) -> None:
    stage = make_reference("qwen 4, n-grams").stage(2)
    stage.open(SESSION, epoch=1)
    hidden = torch.zeros(3, stage.weights.config.width)

    with pytest.raises(error):
        stage.forward(SESSION, hidden, epoch=1, step=0, position=0, ids=ids)
    assert stage.position(SESSION) == 0
