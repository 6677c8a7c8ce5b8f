"""A stage does a step whole or not at all, refuses what does not fit, and lives on."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import CONTEXT, SESSION, Reference

from potluck.engine import stage as stage_module
from potluck.engine.sampler import Choice
from potluck.engine.stage import Output, Stage
from potluck.errors import (
    EngineError,
    InvalidStepError,
    NeedReplayError,
    OutOfMemoryError,
    PotluckError,
    PromptError,
    StaleEpochError,
    UnknownSessionError,
)
from potluck.ids import SessionId
from potluck.model.footprint import MAX_CHUNK_TOKENS
from potluck.wire.messages import Sampling

GREEDY = Sampling(logprobs=5)
OTHER = SessionId("other")


@pytest.fixture
def stage(llama: Reference) -> Stage:
    opened = llama.stage()
    opened.open(SESSION, epoch=1)
    return opened


def forward(
    stage: Stage,
    ids: torch.Tensor,
    position: int,
    *,
    step: int | None = None,
    session: SessionId = SESSION,
    prompt_end: int | None = None,
    sampling: Sampling | None = GREEDY,
) -> Output:
    return stage.forward(
        session,
        ids,
        epoch=1,
        step=position if step is None else step,
        position=position,
        prompt_end=prompt_end,
        sampling=sampling,
    )


def generate(stage: Stage, ids: torch.Tensor, count: int, sampling: Sampling) -> list[int]:
    """Prefill, and tokens one by one."""
    tokens: list[int] = []
    while len(tokens) < count:
        position = stage.position(SESSION)
        choice = forward(stage, ids, position, sampling=sampling).choice
        assert choice is not None
        tokens.append(choice.token_id)
        ids = torch.tensor([choice.token_id], dtype=torch.int32)
    return tokens


def same(ours: Choice | None, theirs: Choice | None) -> bool:
    """The same token for the same reasons, but for the rounding of another order of sums."""
    assert ours is not None
    assert theirs is not None
    return ours.token_id == theirs.token_id and all(
        mine[0] == other[0] and math.isclose(mine[1], other[1], abs_tol=1e-4)
        for mine, other in zip(ours.top, theirs.top, strict=True)
    )


def test_greedy_tokens_and_their_logprobs_are_those_of_transformers(
    llama: Reference, stage: Stage
) -> None:
    ids = llama.prompt(20)

    for _ in range(10):
        position = stage.position(SESSION)
        choice = forward(stage, ids[position:], position).choice

        logprobs = llama.logits(ids)[-1].log_softmax(-1)
        best = logprobs.topk(5)
        assert choice is not None
        assert choice.token_id == best.indices[0]
        assert choice.logprob == pytest.approx(best.values[0].item(), abs=1e-4)
        assert [token for token, _ in choice.top] == best.indices.tolist()
        ids = torch.cat((ids, torch.tensor([choice.token_id])))


@pytest.mark.parametrize("cuts", [(2,), (1, 3)], ids=str)
def test_stages_choose_the_tokens_of_the_whole(llama: Reference, cuts: tuple[int, ...]) -> None:
    bounds = [0, *cuts, 4]
    stages = [llama.stage(*bounds[i : i + 2]) for i in range(len(bounds) - 1)]
    for part in stages:
        part.open(SESSION, epoch=1)
    ids, tokens = llama.prompt(20), list[int]()
    sampling = Sampling(temperature=1.0, seed=3)

    whole = llama.stage()
    whole.open(SESSION, epoch=1)
    expected = generate(whole, ids, 12, sampling)

    while len(tokens) < 12:
        x, position = ids, stages[0].position(SESSION)
        for part in stages[:-1]:
            output = forward(part, x, position, sampling=None)
            assert output.choice is None
            assert output.hidden is not None
            x = output.hidden.tensor
        choice = forward(stages[-1], x, position, sampling=sampling).choice
        assert choice is not None
        tokens.append(choice.token_id)
        ids = torch.tensor([choice.token_id])
    assert tokens == expected


def test_a_chunk_that_needs_no_token_gives_none(llama: Reference, stage: Stage) -> None:
    output = forward(stage, llama.prompt(8), 0, sampling=None)

    assert output == Output(position=8)


def test_a_stage_without_layers_is_only_the_head(llama: Reference) -> None:
    layers = llama.stage(0, 4, head=False)
    head = llama.stage(4, 4, embedding=False)
    whole = llama.stage()
    for part in (layers, head, whole):
        part.open(SESSION, epoch=1)

    hidden = forward(layers, llama.prompt(8), 0).hidden

    assert hidden is not None
    assert forward(head, hidden.tensor, 0) == forward(whole, llama.prompt(8), 0)
    assert head.position(SESSION) == 8


def test_trimming_and_going_on_is_the_same_as_never_having_been_there(
    llama: Reference, stage: Stage
) -> None:
    ids = llama.prompt(30)
    forward(stage, ids, 0)

    stage.trim(SESSION, 11, epoch=1)
    trimmed = forward(stage, ids[11:17], 11)

    stage.open(SESSION, epoch=1)
    assert same(trimmed.choice, forward(stage, ids[:17], 0).choice)


def test_a_step_beyond_the_cache_is_refused_with_where_it_ends(
    llama: Reference, stage: Stage
) -> None:
    ids = llama.prompt(20)
    forward(stage, ids[:10], 0)

    for position in (9, 11, 0, 10**9):
        with pytest.raises(NeedReplayError) as caught:
            forward(stage, ids[:1], position, step=999)
        assert caught.value.data["position"] == 10
    with pytest.raises(NeedReplayError):
        stage.trim(SESSION, 11, epoch=1)
    assert forward(stage, ids[10:], 10).position == 20


def test_a_repeated_step_is_answered_from_memory(llama: Reference, stage: Stage) -> None:
    ids = llama.prompt(20)
    first = forward(stage, ids, 0, step=7)

    again = forward(stage, ids, 0, step=7)

    assert again is first
    assert stage.position(SESSION) == 20
    stage.trim(SESSION, 0, epoch=1)
    assert forward(stage, ids, 0, step=7) is not first


def test_another_step_at_an_old_position_is_not_answered_from_memory(
    llama: Reference, stage: Stage
) -> None:
    ids = llama.prompt(20)
    forward(stage, ids, 0, step=7)

    with pytest.raises(NeedReplayError):
        forward(stage, ids, 0, step=8)
    with pytest.raises(NeedReplayError):
        forward(stage, ids[:4], 0, step=7)


def test_steps_of_another_epoch_are_refused_until_it_is_in_force(
    llama: Reference, stage: Stage
) -> None:
    calls: list[Callable[[int], object]] = [
        lambda epoch: stage.open(SESSION, epoch=epoch),
        lambda epoch: stage.forward(SESSION, llama.prompt(4), epoch=epoch, step=0, position=0),
        lambda epoch: stage.trim(SESSION, 0, epoch=epoch),
        lambda epoch: stage.close(SESSION, epoch=epoch),
    ]

    for call in calls:
        for epoch in (0, 2):
            with pytest.raises(StaleEpochError):
                call(epoch)
    stage.epoch = 2
    for call in calls:
        call(2)


def test_a_session_that_was_never_opened_or_is_closed_is_unknown(
    llama: Reference, stage: Stage
) -> None:
    with pytest.raises(UnknownSessionError):
        forward(stage, llama.prompt(4), 0, session=OTHER)
    with pytest.raises(UnknownSessionError):
        stage.trim(OTHER, 0, epoch=1)

    stage.close(OTHER, epoch=1)
    stage.close(SESSION, epoch=1)
    with pytest.raises(UnknownSessionError):
        forward(stage, llama.prompt(4), 0)


def test_sessions_do_not_see_each_other(llama: Reference, stage: Stage) -> None:
    mine, theirs = llama.prompt(16, seed=1), llama.prompt(16, seed=2)
    stage.open(OTHER, epoch=1)

    forward(stage, mine[:8], 0)
    forward(stage, theirs[:8], 0, session=OTHER)
    interleaved = forward(stage, mine[8:], 8)

    stage.open(SESSION, epoch=1)
    forward(stage, mine[:8], 0)
    assert forward(stage, mine[8:], 8).choice == interleaved.choice


def test_the_session_used_least_recently_loses_its_cache_and_is_replayed(
    llama: Reference,
) -> None:
    per_token = llama.config.kv_bytes_per_token(4) * 4
    stage = llama.stage(cache_budget=2 * CONTEXT * per_token)  # two sessions of the whole context
    ids = llama.prompt(20)
    names = [SessionId(name) for name in ("a", "b", "c")]
    for name in names:
        stage.open(name, epoch=1)
    first = forward(stage, ids, 0, session=names[0])
    forward(stage, ids, 0, session=names[1])
    forward(stage, ids[:1], 20, session=names[0])  # now b is the older one

    forward(stage, ids, 0, session=names[2])

    assert [stage.position(name) for name in names] == [21, 0, 20]
    with pytest.raises(NeedReplayError) as caught:
        forward(stage, ids[:1], 20, session=names[1])
    assert caught.value.data["position"] == 0
    assert forward(stage, ids, 0, session=names[1]).choice == first.choice


def test_a_budget_too_small_for_one_session_is_an_error_of_that_step(llama: Reference) -> None:
    stage = llama.stage(cache_budget=1000)
    stage.open(SESSION, epoch=1)

    with pytest.raises(OutOfMemoryError, match="cache"):
        forward(stage, llama.prompt(4), 0)
    assert stage.position(SESSION) == 0


def test_a_prompt_without_room_is_refused_before_its_first_chunk(llama: Reference) -> None:
    per_token = llama.config.kv_bytes_per_token(4) * 4
    stage = llama.stage(cache_budget=20 * per_token)
    stage.open(SESSION, epoch=1)
    ids = llama.prompt(21)

    with pytest.raises(OutOfMemoryError, match="21 tokens"):
        forward(stage, ids[:8], 0, prompt_end=21)
    assert (stage.position(SESSION), stage.nbytes) == (0, stage.weights.nbytes)

    forward(stage, ids[:8], 0, prompt_end=20)
    assert stage.nbytes == stage.weights.nbytes + 20 * per_token
    assert forward(stage, ids[8:20], 8).position == 20


def test_a_prompt_beyond_the_context_is_refused_before_its_first_chunk(
    llama: Reference, stage: Stage
) -> None:
    with pytest.raises(PromptError, match=f"{CONTEXT + 1} tokens"):
        forward(stage, llama.prompt(4), 0, prompt_end=CONTEXT + 1)
    assert stage.position(SESSION) == 0


def test_the_oldest_sessions_are_forgotten_when_there_are_too_many(
    llama: Reference, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "MAX_SESSIONS", 3)
    for name in ("a", "b"):
        stage.open(SessionId(name), epoch=1)
    forward(stage, llama.prompt(4), 0)  # SESSION is no longer the oldest

    stage.open(SessionId("c"), epoch=1)

    with pytest.raises(UnknownSessionError):
        stage.trim(SessionId("a"), 0, epoch=1)
    assert stage.position(SESSION) == 4


@pytest.mark.parametrize("ids", [[-1], [131], [3, 2**31 - 1], [-(2**31)]])
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


def test_numbers_that_are_none_are_an_error_of_the_step(llama: Reference) -> None:
    stage = llama.stage(2)
    stage.open(SESSION, epoch=1)

    for sampling in (GREEDY, Sampling(temperature=1.0), Sampling(top_p=0.5, temperature=1.0)):
        with pytest.raises(EngineError, match="not numbers"):
            forward(stage, torch.full((1, 48), math.nan), 0, sampling=sampling)


def test_a_full_context_is_refused_with_its_size(llama: Reference, stage: Stage) -> None:
    forward(stage, llama.prompt(CONTEXT), 0)

    with pytest.raises(PromptError, match=f"{CONTEXT + 1} tokens"):
        forward(stage, llama.prompt(1), CONTEXT)


def test_a_device_without_memory_is_an_error_of_the_step(
    llama: Reference, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = llama.prompt(12)
    expected = forward(stage, ids[:6], 0)
    mlp = stage.weights.blocks[2].mlp
    monkeypatch.setattr(mlp, "down", _without_memory)

    with pytest.raises(OutOfMemoryError, match="run 6 tokens at position 6"):
        forward(stage, ids[6:], 6)

    monkeypatch.undo()
    assert stage.position(SESSION) == 6
    after = forward(stage, ids[6:], 6)
    stage.open(SESSION, epoch=1)
    assert forward(stage, ids[:6], 0).choice == expected.choice
    assert forward(stage, ids[6:], 6).choice == after.choice


def _without_memory(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(1 << 60)  # more than any computer has


def test_a_repetition_penalty_knows_the_prompt_and_its_own_choices(
    llama: Reference, stage: Stage
) -> None:
    ids = llama.prompt(20)
    strong = Sampling(repetition_penalty=100.0, history=tuple(ids.tolist()))

    first = forward(stage, ids, 0, sampling=strong).choice
    assert first is not None
    later = Sampling(repetition_penalty=100.0)
    tokens = [first.token_id]
    for _ in range(8):
        last = torch.tensor(tokens[-1:])
        choice = forward(stage, last, stage.position(SESSION), sampling=later).choice
        assert choice is not None
        tokens.append(choice.token_id)

    assert len(set(tokens)) == len(tokens)
    assert not set(tokens) & set(ids.tolist())


def test_a_history_with_unknown_tokens_is_refused(llama: Reference, stage: Stage) -> None:
    for history in ((131,), (5, 2**31 - 1)):
        with pytest.raises(PromptError):
            forward(stage, llama.prompt(4), 0, sampling=Sampling(history=history))
    assert stage.position(SESSION) == 0


def test_a_replayed_session_draws_the_same_tokens(llama: Reference, stage: Stage) -> None:
    ids = llama.prompt(20)
    sampling = Sampling(temperature=1.5, top_p=0.9, seed=11)
    tokens = generate(stage, ids, 12, sampling)

    other = llama.stage()
    other.open(SESSION, epoch=1)
    replayed = torch.cat((ids, torch.tensor(tokens[:5])))

    assert generate(other, replayed, 7, sampling) == tokens[5:]


def test_weights_and_caches_are_counted(llama: Reference) -> None:
    stage = llama.stage()
    parameters = sum(p.numel() for p in llama.model.parameters())
    assert stage.nbytes == parameters * 4

    stage.open(SESSION, epoch=1)
    forward(stage, llama.prompt(4), 0)
    assert stage.nbytes == parameters * 4 + CONTEXT * 4 * llama.config.kv_bytes_per_token(4)
    stage.close(SESSION, epoch=1)
    assert stage.nbytes == parameters * 4


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
    per_token = llama.config.kv_bytes_per_token(4) * 2
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
