"""What the next computer, or the driver, gets to see of a message, and what no computer is told."""

import time
from collections.abc import Sequence

import msgspec
import pytest
import torch
from config_layers import row_bytes
from model_folders import CONFIG

from potluck.cluster.driver.payload import token_payload
from potluck.cluster.stage.steps import SessionMessage, apply
from potluck.engine.loading.weights import random_weights
from potluck.engine.stage import Stage
from potluck.errors import (
    InvalidStepError,
    NeedReplayError,
    OutOfMemoryError,
    StaleEpochError,
    UnknownSessionError,
)
from potluck.ids import SessionId
from potluck.model.config import ModelConfig
from potluck.model.shapes.table import SHAPES
from potluck.wire.activation_messages import (
    CloseSession,
    Forward,
    OpenSession,
    Result,
    Sampling,
    TensorHeader,
    TrimSession,
)
from potluck.wire.messages import Message

CHAT = SessionId("chat")
MODEL = ModelConfig.from_dict(CONFIG)
NGRAMS = {  # layers of a model whose third one looks at ids of tokens
    **SHAPES["qwen3.8-flash-next"],
    "hidden_size": 32,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "vocab_size": 64,
    "eos_token_id": 3,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_attention_heads": 2,
    "hc_count": 2,
    "hc_lowrank": 4,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 1,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "ngram_vocab_size_base": 50,
    "ple_layer_ids": [3],
    "indexer_head_dim": 16,
}
PER_TOKEN = row_bytes(MODEL, 4)  # of one layer
NOTHING = memoryview(b"")


def make_stage(start: int, stop: int, *, tokens: int = 64) -> Stage:
    """These layers of the model, with room for so many tokens."""
    weights = random_weights(
        MODEL,
        range(start, stop),
        embedding=start == 0,
        head=stop == MODEL.num_layers,
        scheme="f32",
        device=torch.device("cpu"),
        seed=5,
    )
    budget = tokens * PER_TOKEN * (stop - start)
    stage = Stage(weights, context=64, cache_budget=budget, epoch=1)
    stage.open(CHAT, epoch=1)
    return stage


@pytest.fixture
def first() -> Stage:
    return make_stage(0, 1)


@pytest.fixture
def whole() -> Stage:
    return make_stage(0, MODEL.num_layers)


def forward(
    tokens: Sequence[int],
    position: int = 0,
    *,
    step: int = 7,
    prompt_end: int | None = None,
    sampling: Sampling | None = None,
    compute_ms: tuple[float, ...] = (),
    drafts: Sequence[int] = (),
) -> tuple[Forward, memoryview]:
    message = Forward(
        epoch=1,
        session=CHAT,
        step=step,
        position=position,
        tensor=TensorHeader(dtype="I32", shape=(len(tokens),)),
        prompt_end=prompt_end,
        sampling=sampling,
        compute_ms=compute_ms,
        drafts=tuple(drafts),
    )
    return message, memoryview(token_payload(tokens))


def result_of(stage: Stage, message: Message, payload: memoryview) -> Result:
    assert isinstance(message, SessionMessage)
    sent, data = apply(stage, message, payload)
    assert isinstance(sent, Result)
    assert not data
    return sent


def test_the_next_stage_is_sent_the_same_step_with_hidden_states(first: Stage) -> None:
    sampling = Sampling(seed=4)
    message, payload = forward([1, 2, 3], prompt_end=9, sampling=sampling, compute_ms=(2.5,))

    sent, data = apply(first, message, payload)

    assert isinstance(sent, Forward)
    hidden = TensorHeader(dtype="F32", shape=(3, MODEL.hidden_size))
    expected = msgspec.structs.replace(message, tensor=hidden, compute_ms=sent.compute_ms)
    assert sent == expected
    assert len(data) == 3 * MODEL.hidden_size * 4


def test_each_stage_adds_how_long_it_computed_behind_those_before(
    first: Stage, whole: Stage
) -> None:
    started = time.perf_counter()
    sent, _ = apply(first, *forward([1, 2, 3], compute_ms=(2.5,)))
    result = result_of(whole, *forward([1, 2, 3], compute_ms=(2.5, 4.0)))
    most_ms = 1000 * (time.perf_counter() - started)

    assert isinstance(sent, Forward)
    assert sent.compute_ms[:-1] == (2.5,)
    assert result.compute_ms[:-1] == (2.5, 4.0)
    assert 0 < sent.compute_ms[-1] < sent.compute_ms[-1] + result.compute_ms[-1] < most_ms


def test_two_stages_answer_the_driver_what_one_does(first: Stage, whole: Stage) -> None:
    last = make_stage(1, 2)
    message, payload = forward([1, 2, 3], sampling=Sampling(logprobs=2))

    sent, data = apply(first, message, payload)
    answer = result_of(last, sent, data)

    alone = result_of(whole, message, payload)
    assert (answer.epoch, answer.session, answer.step) == (1, CHAT, 7)
    assert answer.position == alone.position == 3
    assert answer.token_id == alone.token_id
    assert answer.logprob == pytest.approx(alone.logprob)
    assert [one.token_id for one in answer.top] == [one.token_id for one in alone.top]
    assert answer.top[0].token_id == answer.token_id  # the choice was the best
    assert answer.top[0].logprob == answer.logprob
    assert answer.top[1].logprob <= answer.top[0].logprob


def test_guesses_go_along_to_the_last_stage_which_says_which_were_right() -> None:
    alone, stages = make_stage(0, 2), (make_stage(0, 1), make_stage(1, 2))
    sampling = Sampling(logprobs=1)
    one = result_of(alone, *forward([5], sampling=sampling))
    assert one.token_id is not None
    two = result_of(alone, *forward([one.token_id], 1, step=8, sampling=sampling))
    wrong = 1 if two.token_id != 1 else 2

    drafts = (one.token_id, wrong)
    message, payload = apply(stages[0], *forward([5, *drafts], sampling=sampling, drafts=drafts))
    assert isinstance(message, Forward)
    assert message.drafts == drafts
    result = result_of(stages[1], message, payload)

    assert [chosen.token_id for chosen in result.accepted] == [one.token_id]
    assert result.accepted[0].logprob == pytest.approx(one.logprob)
    assert result.accepted[0].top[0].token_id == one.top[0].token_id
    assert (result.token_id, result.position) == (two.token_id, 2)


def test_a_chunk_that_needs_no_token_is_answered_with_where_the_caches_end(whole: Stage) -> None:
    result = result_of(whole, *forward([1, 2, 3], prompt_end=9))

    times = result.compute_ms
    assert result == Result(epoch=1, session=CHAT, step=7, position=3, compute_ms=times)


def test_a_prompt_is_refused_with_its_first_chunk_where_there_is_no_room_for_its_last() -> None:
    stage = make_stage(0, 1, tokens=8)

    with pytest.raises(OutOfMemoryError):
        apply(stage, *forward([1, 2, 3], prompt_end=9))
    assert stage.position(CHAT) == 0
    apply(stage, *forward([1, 2, 3], prompt_end=8))


@pytest.mark.parametrize(
    "message",
    [
        OpenSession(epoch=1, session=CHAT),
        TrimSession(epoch=1, session=CHAT, position=2),
        CloseSession(epoch=1, session=CHAT),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_is_said_of_a_session_goes_on_as_it_came(
    first: Stage, message: SessionMessage
) -> None:
    payload = memoryview(b"as it came")

    assert apply(first, message, payload) == (message, payload)


def test_a_session_is_opened_trimmed_and_closed(first: Stage) -> None:
    apply(first, *forward([1, 2, 3, 4]))

    apply(first, TrimSession(epoch=1, session=CHAT, position=3), NOTHING)
    assert first.position(CHAT) == 3
    apply(first, OpenSession(epoch=1, session=CHAT), NOTHING)
    assert first.position(CHAT) == 0
    apply(first, CloseSession(epoch=1, session=CHAT), NOTHING)
    with pytest.raises(UnknownSessionError):
        apply(first, *forward([1]))


def test_a_session_is_opened_with_the_beginning_of_another() -> None:
    first = make_stage(0, 1, tokens=128)  # for two sessions
    apply(first, *forward([1, 2, 3, 4]))
    opened = OpenSession(epoch=1, session="other", source=CHAT, position=3)

    assert apply(first, opened, NOTHING) == (opened, NOTHING)

    assert first.position(SessionId("other")) == 3
    assert first.position(CHAT) == 4
    apply(first, OpenSession(epoch=1, session="third", source="unknown", position=3), NOTHING)
    assert first.position(SessionId("third")) == 0


def test_a_stage_that_holds_less_passes_a_trim_on_and_says_so_at_the_next_step(
    first: Stage,
) -> None:
    apply(first, *forward([1, 2, 3, 4]))
    trim = TrimSession(epoch=1, session=CHAT, position=6)
    unknown = TrimSession(epoch=1, session="other", position=0)

    assert apply(first, trim, NOTHING)[0] == trim
    assert apply(first, unknown, NOTHING)[0] == unknown

    with pytest.raises(NeedReplayError) as caught:
        apply(first, *forward([7], 6, step=8))
    assert caught.value.data["position"] == first.position(CHAT) == 4


def test_a_trim_to_where_a_session_ends_leaves_the_last_step_to_be_asked_for_again(
    first: Stage,
) -> None:
    step = forward([1, 2, 3, 4])
    _, data = apply(first, *step)

    apply(first, TrimSession(epoch=1, session=CHAT, position=4), NOTHING)

    assert bytes(apply(first, *step)[1]) == bytes(data)


@pytest.mark.parametrize("kind", [OpenSession, CloseSession])
def test_what_another_plan_says_of_a_session_is_refused(
    first: Stage, kind: type[OpenSession | CloseSession]
) -> None:
    with pytest.raises(StaleEpochError):
        apply(first, kind(epoch=2, session=CHAT), NOTHING)


def test_a_trim_of_another_plan_trims_nothing(first: Stage) -> None:
    apply(first, *forward([1, 2, 3, 4]))

    with pytest.raises(StaleEpochError):
        apply(first, TrimSession(epoch=2, session=CHAT, position=1), NOTHING)
    assert first.position(CHAT) == 4


def test_ids_of_tokens_go_along_until_no_later_layer_looks_at_them() -> None:
    config = ModelConfig.from_dict(NGRAMS)

    def stage(layer: int) -> Stage:
        weights = random_weights(
            config,
            range(layer, layer + 1),
            embedding=layer == 0,
            head=False,
            scheme="f32",
            device=torch.device("cpu"),
        )
        made = Stage(weights, context=64, cache_budget=1 << 24, epoch=1)
        made.open(CHAT, epoch=1)
        return made

    message, payload = forward([1, 2, 3])
    first, data = apply(stage(0), message, payload)
    assert isinstance(first, Forward)
    assert first.ids == bytes(token_payload([1, 2, 3]))
    second, data = apply(stage(1), first, data)
    assert isinstance(second, Forward)
    assert second.ids == first.ids
    third, _ = apply(stage(2), second, data)
    assert isinstance(third, Forward)
    assert not third.ids

    broken = msgspec.structs.replace(second, ids=b"12345")
    with pytest.raises(InvalidStepError):
        apply(stage(2), broken, data)
