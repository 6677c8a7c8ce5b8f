"""A stage chooses the tokens that the whole model chooses, and does a step whole or not at all."""

import math
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from stage_steps import forward
from tiny_models import SESSION, Reference

from potluck.engine.sampling.sampler import Choice, Sampler
from potluck.engine.stage import Output, Stage
from potluck.errors import (
    NeedReplayError,
)
from potluck.wire.activation_messages import Sampling

MakeReference = Callable[..., Reference]


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


def test_trimming_to_where_a_session_ends_changes_nothing(llama: Reference, stage: Stage) -> None:
    ids = llama.prompt(20)
    forward(stage, ids[:10], 0)

    stage.trim(SESSION, 10, epoch=1)

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
    assert forward(stage, ids, 20, step=7).position == 40


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


def test_a_repetition_penalty_forgets_what_was_trimmed_and_nothing_before(
    llama: Reference, stage: Stage
) -> None:
    ids = llama.prompt(20)
    best = forward(stage, ids, 0, sampling=Sampling()).choice
    assert best is not None
    others = [token for token in range(21) if token != best.token_id]
    strong = Sampling(repetition_penalty=100.0)

    def choice_with(history: list[int], trimmed_to: int) -> int:
        stage.trim(SESSION, 0, epoch=1)
        given = Sampling(repetition_penalty=100.0, history=tuple(history))
        forward(stage, ids, 0, sampling=given)
        stage.trim(SESSION, trimmed_to, epoch=1)
        choice = forward(stage, ids[trimmed_to:], trimmed_to, sampling=strong).choice
        assert choice is not None
        return choice.token_id

    assert choice_with(others[:20], 19) == best.token_id  # what it chose itself goes too
    assert choice_with([best.token_id, *others[:3]], 0) == best.token_id
    assert choice_with([*others[:10], best.token_id], 10) == best.token_id
    assert choice_with([best.token_id, *others[:9]], 10) != best.token_id


def test_a_token_is_drawn_for_where_it_will_stand(llama: Reference, stage: Stage) -> None:
    ids = llama.prompt(20)
    logits = llama.logits(ids)[-1]

    for seed in range(8):
        sampling = Sampling(temperature=1.0, seed=seed)
        stage.trim(SESSION, 0, epoch=1)
        drawn = forward(stage, ids, 0, sampling=sampling).choice
        assert drawn == Sampler().choose(logits, sampling, position=20, history=())


def test_embeddings_of_16_bits_are_scaled_as_the_model_was_trained(
    make_reference: MakeReference,
) -> None:
    """The square root of the hidden size, in 16 bits: 6.9375 for 6.9282."""
    gemma = make_reference("gemma 3", dtype=torch.bfloat16)
    stage = gemma.stage(0, 0, head=False, scheme="bf16")
    stage.open(SESSION, epoch=1)
    ids = gemma.prompt(20)

    output = forward(stage, ids, 0).hidden

    assert output is not None
    embedding = deepcopy(gemma.model.model.embed_tokens).bfloat16()
    assert torch.equal(output.tensor, embedding(ids))


def test_a_replayed_session_draws_the_same_tokens(llama: Reference, stage: Stage) -> None:
    ids = llama.prompt(20)
    sampling = Sampling(temperature=1.5, top_p=0.9, seed=11)
    tokens = generate(stage, ids, 12, sampling)

    other = llama.stage()
    other.open(SESSION, epoch=1)
    replayed = torch.cat((ids, torch.tensor(tokens[:5])))

    assert generate(other, replayed, 7, sampling) == tokens[5:]
