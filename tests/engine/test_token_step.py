"""One token without torch is the token with it, and only stages that can have such steps have them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from config_layers import attention
from tiny_models import CONTEXT, CPU, SESSION, Reference, make_model, whole_blocks
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.rotary import Rotary
from potluck.engine.payload import Activations
from potluck.engine.stage import Output, Stage
from potluck.engine.token_step import make_token_step
from potluck.errors import EngineError
from potluck.ids import SessionId
from potluck.model.schemes import Scheme
from potluck.wire.activation_messages import Sampling

MakeReference = Callable[..., Reference]

GREEDY = Sampling()
OTHER = SessionId("other")
MULTIPLIERS = {"embedding_multiplier": 2.7, "logits_divisor": 1.7, "logits_softcap": 3.0}
NORMS = {
    "rms_norm_eps": 0.1
}  # what the variants have is the usual, behind which a mistake could hide
SATURATED = {"logits_softcap": 0.01}  # many logits are the largest then


def slowly(stage: Stage) -> Stage:
    """Return the same stage, whose tokens go through torch."""
    weights = replace(stage.weights, is_generated=False)
    return Stage(weights, context=CONTEXT, cache_budget=1 << 24, epoch=1)


def run(
    stage: Stage,
    inputs: Tensor | Activations,
    position: int,
    *,
    session: SessionId = SESSION,
    sampling: Sampling | None = GREEDY,
    ids: Tensor | None = None,
) -> Output:
    return stage.forward(
        session, inputs, epoch=1, step=position, position=position, sampling=sampling, ids=ids
    )


def hidden_of(output: Output) -> Tensor:
    assert output.hidden is not None
    return output.hidden.tensor


def has_token_steps(stage: Stage) -> bool:
    return make_token_step(stage.weights) is not None


@pytest.mark.parametrize(
    ("variant", "scheme", "changes"),
    [
        ("llama, whole blocks", "int4", {}),
        ("qwen 2", "int4", MULTIPLIERS),
        ("qwen 2", "int8", SATURATED),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        "deepseek 4",
        "glm 5.3, text of a model with pictures",
        "minimax m3, text of a model with pictures",
    ],
)
def test_tokens_that_choose_what_they_see_need_no_torch(tmp_path: Path, variant: str) -> None:
    """Residual streams, and experts by a token's id, on both sides of a cut."""
    reference = make_model(variant, tmp_path, changes=whole_blocks(variant))
    stages = [reference.stage(0, 2, scheme="int4"), reference.stage(2, scheme="int4")]
    ids, slow = reference.prompt(40), [slowly(stage) for stage in stages]
    for stage in (*stages, *slow):
        stage.open(SESSION, epoch=1)

    assert all(map(has_token_steps, stages))
    for start, count in ((0, 24), *((position, 1) for position in range(24, 40))):
        some = ids[start : start + count]
        known = some if stages[0].sends_ids else None
        outputs = list[Output]()
        for first, last in (stages, slow):
            hidden = hidden_of(run(first, some, start))
            outputs.append(run(last, hidden, start, ids=known))
        assert outputs[0] == outputs[1]


def test_layers_of_two_kinds_of_angles_are_those_with_torch(tmp_path: Path) -> None:
    """Gemma 3 has them; projections have whole blocks of rows here."""
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 80}
    reference = make_model("gemma 3", tmp_path, changes=sizes)
    stage = reference.stage(scheme="int8")
    slow = slowly(stage)
    ids = reference.prompt(20)
    for one in (stage, slow):
        one.open(SESSION, epoch=1)
        run(one, ids[:8], 0)

    assert len(reference.config.ropes) == 2
    assert has_token_steps(stage)
    for position in range(8, 20):
        token, sampling = ids[position : position + 1], Sampling(logprobs=0)
        ours, theirs = (
            run(one, token, position, sampling=sampling).choice for one in (stage, slow)
        )
        assert ours is not None
        assert theirs is not None
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_a_stage_of_the_head_alone_chooses_what_the_whole_does(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("llama, whole blocks")
    layers = reference.stage(0, 4, scheme="int4", head=False)
    head = reference.stage(4, 4, scheme="int4", embedding=False)
    whole = reference.stage(scheme="int4")
    ids = reference.prompt(6)
    for one in (layers, head, whole):
        one.open(SESSION, epoch=1)

    assert has_token_steps(head)
    for position in range(6):
        token = ids[position : position + 1]
        hidden = hidden_of(run(layers, token, position))
        assert run(head, hidden, position) == run(whole, token, position)


def test_a_token_that_needs_no_answer_gives_none(make_reference: MakeReference) -> None:
    stage = make_reference("qwen 2").stage(scheme="int4")
    stage.open(SESSION, epoch=1)

    output = run(stage, torch.tensor([17], dtype=torch.int32), 0, sampling=None)

    assert output == Output(position=1)
    assert stage.position(SESSION) == 1


def test_layers_that_were_run_with_other_caches_find_their_own_again(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("qwen 2")
    stage, alone = (reference.stage(0, 2, scheme="int4") for _ in range(2))
    ids = reference.prompt(4)
    config, others = stage.weights.config, list[LayerCache]()
    for _ in stage.weights.blocks:
        others.append(
            LayerCache(
                attention(config.layers[0].mixer).kv_heads, config.head_dim, torch.float16, CPU
            )
        )
        others[-1].resize(8, 0)
    rotaries = [Rotary(rope, CONTEXT, torch.float32, CPU) for rope in config.ropes]
    for one in (stage, alone):
        one.open(SESSION, epoch=1)
    (layers,) = stage.weights.runs

    for position in range(4):
        token = ids[position : position + 1]
        output = hidden_of(run(stage, token, position))
        with torch.inference_mode():  # as who measures a stage does
            layers(torch.randn(1, 48), others, Step(position, 1, rotaries, CPU))
        assert torch.equal(output, hidden_of(run(alone, token, position)))


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


def test_the_final_norm_is_that_with_torch(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 2")
    config = replace(reference.config, **NORMS)
    stage = replace(reference, config=config).stage(2, scheme="int8")
    hidden, logprobs = torch.randn(1, 48), list[float | None]()

    for one in (stage, slowly(stage)):
        one.open(SESSION, epoch=1)
        choice = run(one, hidden, 0, sampling=Sampling(logprobs=0)).choice
        assert choice is not None
        logprobs.append(choice.logprob)

    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)


def test_the_best_token_is_not_chosen_where_a_penalty_makes_it_worse(
    make_reference: MakeReference,
) -> None:
    stage = make_reference("qwen 2").stage(scheme="int8")
    stage.open(SESSION, epoch=1)
    token = torch.tensor([17], dtype=torch.int32)
    best = run(stage, token, 0).choice
    assert best is not None

    stage.trim(SESSION, 0, epoch=1)
    penalised = Sampling(repetition_penalty=100.0, history=(best.token_id,))
    other = run(stage, token, 0, sampling=penalised).choice

    assert other is not None
    assert other.token_id != best.token_id


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


@pytest.mark.parametrize(
    "variant",
    [
        "nemotron h",
        "falcon h1",
        *(
            pytest.param(variant, marks=pytest.mark.slow)  # a second to compile
            for variant in (
                "nemotron h, narrow experts",
                "lfm 2 moe",
                "apertus",
                "command a+, softmax, sum",
            )
        ),
    ],
)
def test_a_token_goes_through_layers_of_all_kinds_without_torch(
    tmp_path: Path, variant: str
) -> None:
    reference = make_model(variant, tmp_path, changes=whole_blocks(variant))

    assert has_token_steps(reference.stage(scheme="int8"))
