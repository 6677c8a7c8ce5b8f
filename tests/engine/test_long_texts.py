"""Models with other rotary frequencies for long texts: each session has those of `transformers` for its length."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import SESSION, Pipeline, Reference, difference, make_model, whole_blocks

from potluck.engine.payload import Activations
from potluck.engine.session import Output, StepTokens
from potluck.errors import NeedReplayError
from potluck.ids import SessionId
from potluck.model.schemes import Scheme
from potluck.wire.activation_messages import Sampling

MakeReference = Callable[..., Reference]

ORIGINAL = 32  # tokens that the model of the tests was trained on
TOLERANCE = 2e-5  # of the largest logit
OTHER = SessionId("other")


@pytest.fixture(params=[True, False], ids=["generated", "torch"])
def reference(request: pytest.FixtureRequest, tmp_path: Path) -> Reference:
    """A model whose tokens go through generated kernels, or through torch."""
    changes = whole_blocks("phi 3.5, long") if request.param else {"intermediate_size": 75}
    return make_model("phi 3.5, long", tmp_path, changes=changes)


@pytest.mark.parametrize("tokens", [5, ORIGINAL, ORIGINAL + 1, 60])
@pytest.mark.parametrize("sizes", [(60,), (20,) * 3, (1,) * 60], ids=["whole", "chunks", "single"])
def test_a_prompt_has_the_logits_of_transformers_on_both_sides_of_the_limit(
    reference: Reference, tokens: int, sizes: tuple[int, ...]
) -> None:
    ids, left = reference.prompt(tokens), tokens
    pieces = list[int]()
    for size in sizes:
        pieces.append(min(size, left))
        left -= pieces[-1]
    pieces = [piece for piece in pieces if piece]

    logits = Pipeline(reference, [1]).run_in_pieces(ids, pieces)

    assert difference(logits, reference.logits(ids)) < TOLERANCE


def test_an_answer_within_the_limit_needs_no_replay(reference: Reference) -> None:
    ids, pipeline = reference.prompt(ORIGINAL), Pipeline(reference, [1])

    logits = torch.cat([pipeline.run(piece) for piece in ids.split([20] + [1] * 12)])

    assert difference(logits, reference.logits(ids)) < TOLERANCE


def test_what_grows_beyond_the_limit_is_computed_again_like_a_longer_prompt(
    reference: Reference,
) -> None:
    ids, pipeline = reference.prompt(ORIGINAL + 8), Pipeline(reference)
    pipeline.run(ids[:ORIGINAL])

    with pytest.raises(NeedReplayError) as refused:
        pipeline.run(ids[ORIGINAL : ORIGINAL + 1])

    assert refused.value.data["position"] == 0
    pipeline.trim(0)
    pipeline.run_in_pieces(ids[: ORIGINAL + 1], [20, 13])
    logits = torch.cat([pipeline.run(one) for one in ids[ORIGINAL + 1 :].split(1)])
    assert difference(logits, reference.logits(ids)[ORIGINAL + 1 :]) < TOLERANCE


def test_an_answer_that_passes_the_limit_has_the_tokens_of_transformers(
    reference: Reference,
) -> None:
    ids, pipeline = reference.prompt(20), Pipeline(reference)
    with torch.inference_mode():
        theirs = reference.model.generate(ids[None].long(), max_new_tokens=32, do_sample=False)[0]

    logits = pipeline.run(ids)
    for _ in range(32):
        ids = torch.cat((ids, logits[-1].argmax()[None].int()))
        try:
            logits = pipeline.run(ids[-1:])
        except NeedReplayError:
            pipeline.trim(0)
            logits = pipeline.run(ids)

    assert ids[: len(theirs)].tolist() == theirs.tolist()


def test_a_long_session_that_is_emptied_is_a_short_one_again(reference: Reference) -> None:
    pipeline, ids = Pipeline(reference), reference.prompt(10, seed=1)
    pipeline.run(reference.prompt(50))

    pipeline.trim(0)

    assert difference(pipeline.run(ids), reference.logits(ids)) < TOLERANCE


@pytest.mark.parametrize("scheme", ["f32", "bf16", "int8"])
def test_short_and_long_sessions_at_once_have_the_bits_that_they_have_alone(
    reference: Reference, scheme: Scheme
) -> None:
    short, long = reference.prompt(21), reference.prompt(51, seed=1)
    both, alone = (reference.stage(scheme=scheme) for _ in range(2))
    for stage in (both, alone):
        for session, ids in ((SESSION, short), (OTHER, long)):
            stage.open(session, epoch=1)
            stage.forward(session, ids[:-1], epoch=1, step=1, position=0)
    steps = [
        StepTokens(session, Activations.of(ids[-1:]), 1, 2, len(ids) - 1, Sampling(logprobs=3))
        for session, ids in ((SESSION, short), (OTHER, long))
    ]

    together = both.forward_together(steps)

    assert together == [alone.forward_together([step])[0] for step in steps]
    assert all(isinstance(output, Output) for output in together)


def test_a_copy_of_a_long_session_goes_on_like_it(reference: Reference) -> None:
    ids, pipeline = reference.prompt(50), Pipeline(reference)
    logits = pipeline.run(ids)

    pipeline.fork(OTHER, 40)

    assert pipeline.position == 40
    assert difference(pipeline.run_in_pieces(ids[40:], [10]), logits[40:]) < TOLERANCE


def test_dynamic_scaling_is_that_of_a_full_context_beyond_the_limit(
    make_reference: MakeReference,
) -> None:
    reference = make_reference("llama, dynamic scaling")
    limit = reference.config.max_position
    ids = reference.prompt(limit + 40)
    expected = reference.logits(ids[:limit])  # first, since transformers keeps a larger theta

    pipeline = Pipeline(reference, [2], context=len(ids))
    logits = pipeline.run_in_pieces(ids, (limit, 39, 1))
    pipeline.restart()
    within = pipeline.run(ids[:limit])

    assert difference(logits, reference.logits(ids)) < TOLERANCE
    assert difference(within, expected) < TOLERANCE
