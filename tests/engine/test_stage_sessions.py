"""The sessions of a stage: known or not, apart from each other, within the memory that there is."""

from collections.abc import Callable

import pytest
import torch
from config_layers import row_bytes
from stage_steps import OTHER, forward
from tiny_models import CONTEXT, SESSION, Reference

from potluck.engine.stage import Stage
from potluck.errors import (
    NeedReplayError,
    OutOfMemoryError,
    StaleEpochError,
    UnknownSessionError,
)
from potluck.ids import SessionId


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


def test_hidden_states_are_kept_of_the_last_step_alone_and_computed_again_for_another(
    llama: Reference,
) -> None:
    stage = llama.stage(0, 2)
    ids = llama.prompt(20)
    for name in (SESSION, OTHER):
        stage.open(name, epoch=1)
    first = forward(stage, ids, 0, step=7)
    assert forward(stage, ids, 0, step=7) is first
    second = forward(stage, ids[:9], 0, step=8, session=OTHER)

    kept = [known.output for known in stage._sessions.values()]
    again = forward(stage, ids, 0, step=7)

    assert kept == [None, second]
    assert again is not first
    assert again.hidden is not None
    assert first.hidden is not None
    assert torch.equal(again.hidden.tensor, first.hidden.tensor)
    assert (stage.position(SESSION), stage.position(OTHER)) == (20, 9)
    stage.close(SESSION, epoch=1)
    assert forward(stage, ids[:9], 0, step=8, session=OTHER).position == 9


def test_tokens_that_were_chosen_are_kept_for_every_session(llama: Reference, stage: Stage) -> None:
    first = forward(stage, llama.prompt(20), 0, step=7)
    stage.open(OTHER, epoch=1)
    forward(stage, llama.prompt(9), 0, step=8, session=OTHER)

    assert forward(stage, llama.prompt(20), 0, step=7) is first


def test_the_session_used_least_recently_loses_its_cache_and_is_replayed(
    llama: Reference,
) -> None:
    per_token = row_bytes(llama.config, 4) * 4
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
    # The step that was done last, but what it had cached is lost: it is done again.
    assert forward(stage, ids, 0, session=names[1]).choice == first.choice
    assert stage.position(names[1]) == 20


def test_a_budget_too_small_for_one_session_is_an_error_of_that_step(llama: Reference) -> None:
    stage = llama.stage(cache_budget=1000)
    stage.open(SESSION, epoch=1)

    with pytest.raises(OutOfMemoryError, match="cache"):
        forward(stage, llama.prompt(4), 0)
    assert stage.position(SESSION) == 0


def test_a_prompt_without_room_is_refused_before_its_first_chunk(llama: Reference) -> None:
    per_token = row_bytes(llama.config, 4) * 4
    stage = llama.stage(cache_budget=20 * per_token)
    stage.open(SESSION, epoch=1)
    ids = llama.prompt(21)

    with pytest.raises(OutOfMemoryError, match="21 tokens"):
        forward(stage, ids[:8], 0, prompt_end=21)
    assert (stage.position(SESSION), stage.nbytes) == (0, stage.weights.nbytes)

    forward(stage, ids[:8], 0, prompt_end=20)
    assert stage.nbytes == stage.weights.nbytes + 20 * per_token
    assert forward(stage, ids[8:20], 8).position == 20


def test_a_prompt_has_the_room_that_there_is_now(llama: Reference) -> None:
    per_token = row_bytes(llama.config, 4) * 4
    weights = llama.stage().weights
    stage = Stage(
        weights,
        context=CONTEXT,
        cache_budget=1 << 24,
        budget_now=lambda _: 20 * per_token,
        epoch=1,
    )
    stage.open(SESSION, epoch=1)

    with pytest.raises(OutOfMemoryError, match=r"21 tokens .* free for it now"):
        forward(stage, llama.prompt(8), 0, prompt_end=21)
    assert forward(stage, llama.prompt(8), 0, prompt_end=20).position == 8


def test_the_oldest_sessions_are_forgotten_when_there_are_too_many(llama: Reference) -> None:
    stage = llama.stage(max_sessions=3)
    stage.open(SESSION, epoch=1)
    for name in ("a", "b"):
        stage.open(SessionId(name), epoch=1)
    forward(stage, llama.prompt(4), 0)  # SESSION is no longer the oldest

    stage.open(SessionId("c"), epoch=1)

    with pytest.raises(UnknownSessionError):
        stage.trim(SessionId("a"), 0, epoch=1)
    assert stage.position(SESSION) == 4


def test_a_session_that_is_opened_again_is_the_newest_and_takes_the_place_of_none(
    llama: Reference,
) -> None:
    stage = llama.stage(max_sessions=2)
    stage.open(SESSION, epoch=1)
    stage.open(OTHER, epoch=1)
    forward(stage, llama.prompt(4), 0, session=OTHER)

    stage.open(SESSION, epoch=1)  # both are still known
    assert stage.position(OTHER) == 4
    stage.open(OTHER, epoch=1)
    forward(stage, llama.prompt(4), 0)
    stage.open(SESSION, epoch=1)
    stage.open(SessionId("c"), epoch=1)

    with pytest.raises(UnknownSessionError):
        stage.trim(OTHER, 0, epoch=1)
    stage.trim(SESSION, 0, epoch=1)


def test_a_session_that_was_forgotten_gives_its_memory_back(llama: Reference) -> None:
    stage = llama.stage(max_sessions=1)
    stage.open(SESSION, epoch=1)
    forward(stage, llama.prompt(4), 0)

    stage.open(OTHER, epoch=1)

    assert stage.nbytes == stage.weights.nbytes


def test_weights_and_caches_are_counted(llama: Reference) -> None:
    stage = llama.stage()
    parameters = sum(p.numel() for p in llama.model.parameters())
    assert stage.nbytes == parameters * 4

    stage.open(SESSION, epoch=1)
    forward(stage, llama.prompt(4), 0)
    assert stage.nbytes == parameters * 4 + CONTEXT * 4 * row_bytes(llama.config, 4)
    stage.close(SESSION, epoch=1)
    assert stage.nbytes == parameters * 4
