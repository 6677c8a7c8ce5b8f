"""One token without torch is the token with it, and only stages that can have such steps have them."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from tiny_models import CONTEXT, SESSION, Reference
from torch import Tensor

from potluck.engine.payload import Activations
from potluck.engine.stage import Output, Stage
from potluck.engine.token_step import make_token_step
from potluck.errors import EngineError
from potluck.ids import SessionId
from potluck.model.schemes import Scheme
from potluck.wire.messages import Sampling

MakeReference = Callable[..., Reference]

GREEDY = Sampling()
OTHER = SessionId("other")
MULTIPLIERS = {"embedding_multiplier": 2.7, "logits_divisor": 1.7, "logits_softcap": 3.0}


def slowly(stage: Stage) -> Stage:
    """The same stage, which goes through torch."""
    weights = replace(stage.weights, is_generated=False)
    return Stage(weights, context=CONTEXT, cache_budget=1 << 24, epoch=1)


def run(
    stage: Stage,
    inputs: Tensor | Activations,
    position: int,
    *,
    session: SessionId = SESSION,
    sampling: Sampling | None = GREEDY,
) -> Output:
    return stage.forward(
        session, inputs, epoch=1, step=position, position=position, sampling=sampling
    )


def hidden_of(output: Output) -> Tensor:
    assert output.hidden is not None
    return output.hidden.tensor


def has_token_steps(stage: Stage) -> bool:
    return make_token_step(stage.weights, []) is not None


@pytest.mark.parametrize(
    ("variant", "scheme", "changes"),
    [
        ("llama, whole blocks", "int4", {}),
        ("qwen 2", "int4", MULTIPLIERS),
        ("qwen 3", "int8", {}),
        ("phi 4 mini, short, partial", "int4-head8", {}),
        ("qwen 2", "int4-offset", {}),
    ],
    ids=str,
)
def test_tokens_through_stages_are_those_with_torch(
    make_reference: MakeReference, variant: str, scheme: Scheme, changes: Mapping[str, float]
) -> None:
    reference = make_reference(variant)
    reference = replace(reference, config=replace(reference.config, **changes))
    first, last = reference.stage(0, 2, scheme=scheme), reference.stage(2, scheme=scheme)
    slow_first, slow_last = slowly(first), slowly(last)
    stages = (first, last, slow_first, slow_last)
    for stage in stages:
        stage.open(SESSION, epoch=1)
    ids = reference.prompt(20)

    assert has_token_steps(first)
    assert has_token_steps(last)
    for start, count in ((0, 8), *((position, 1) for position in range(8, 20))):
        some = ids[start : start + count]
        hidden, slow_hidden = (
            hidden_of(run(first, some, start)),
            hidden_of(run(slow_first, some, start)),
        )
        chosen, slowly_chosen = run(last, hidden, start), run(slow_last, slow_hidden, start)

        assert torch.equal(hidden, slow_hidden)
        assert chosen == slowly_chosen


def test_bytes_that_arrive_are_a_token_too(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")
    ours, theirs = (reference.stage(0, 2, scheme="int4") for _ in range(2))
    for stage in (ours, theirs):
        stage.open(SESSION, epoch=1)
    token = torch.tensor([17], dtype=torch.int32)
    arrived = Activations(torch.int32, (1,), memoryview(b"\x11\0\0\0"))

    assert torch.equal(hidden_of(run(ours, arrived, 0)), hidden_of(run(theirs, token, 0)))


def test_hidden_states_of_16_bits_are_widened(make_reference: MakeReference) -> None:
    stage = make_reference("qwen 2").stage(2, 3, scheme="int4", head=False)
    slow = slowly(stage)
    hidden = torch.randn(1, 48).bfloat16()
    for one in (stage, slow):
        one.open(SESSION, epoch=1)

    assert torch.equal(hidden_of(run(stage, hidden, 0)), hidden_of(run(slow, hidden, 0)))


def test_sessions_in_turns_do_not_see_each_other(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")
    stage, alone = (reference.stage(0, 2, scheme="int4") for _ in range(2))
    mine, theirs = reference.prompt(30, seed=1), reference.prompt(30, seed=2)
    for name in (SESSION, OTHER):
        stage.open(name, epoch=1)
    alone.open(SESSION, epoch=1)

    for position in range(30):
        here = slice(position, position + 1)
        output = run(stage, mine[here], position)
        run(stage, theirs[here], position, session=OTHER)

        assert torch.equal(hidden_of(output), hidden_of(run(alone, mine[here], position)))


def test_caches_that_grow_are_followed(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")
    weights = reference.stage(0, 2, scheme="int4").weights
    stage = Stage(weights, context=600, cache_budget=1 << 24, epoch=1)
    slow = Stage(replace(weights, is_generated=False), context=600, cache_budget=1 << 24, epoch=1)
    for one in (stage, slow):
        one.open(SESSION, epoch=1)
    ids = reference.prompt(520)
    for start, stop in ((0, 254), (256, 510)):
        for one in (stage, slow):
            run(one, ids[start:stop], start)
        for position in range(stop, stop + 2 if start == 0 else stop + 6):
            token = ids[position : position + 1]

            outputs = [hidden_of(run(one, token, position)) for one in (stage, slow)]

            assert torch.equal(*outputs)


def test_what_was_handed_out_stays_as_it_was(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")
    stage = reference.stage(0, 2, scheme="int4")
    stage.open(SESSION, epoch=1)
    ids = reference.prompt(3)

    first = run(stage, ids[:1], 0)
    before = hidden_of(first).clone()
    run(stage, ids[1:2], 1)

    assert torch.equal(hidden_of(first), before)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(logprobs=3),
        Sampling(temperature=1.0, seed=4),
        Sampling(repetition_penalty=1.5, history=(5, 6)),
    ],
)
def test_tokens_are_drawn_as_with_torch(make_reference: MakeReference, sampling: Sampling) -> None:
    reference = make_reference("qwen 2")
    stage = reference.stage(scheme="int8")
    slow = slowly(stage)
    for one in (stage, slow):
        one.open(SESSION, epoch=1)
    choices = [
        [run(one, reference.prompt(4)[i : i + 1], i, sampling=sampling).choice for i in range(4)]
        for one in (stage, slow)
    ]

    for ours, theirs in zip(*choices, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_numbers_that_are_none_are_an_error_of_the_step(make_reference: MakeReference) -> None:
    stage = make_reference("qwen 2").stage(2, scheme="int4")
    stage.open(SESSION, epoch=1)

    with pytest.raises(EngineError, match="not numbers"):
        run(stage, torch.full((1, 48), torch.nan), 0)
    assert stage.position(SESSION) == 0


@pytest.mark.parametrize(
    ("variant", "scheme"),
    [("qwen 2", "f32"), ("qwen 2", "bf16"), ("qwen 3 moe", "int4"), ("llama", "int4")],
)
def test_where_torch_has_a_part_there_are_none(
    make_reference: MakeReference, variant: str, scheme: Scheme
) -> None:
    assert not has_token_steps(make_reference(variant).stage(scheme=scheme))
