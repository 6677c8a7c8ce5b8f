"""Sessions with caches of pools: windows that move, trims and replays, copies, and growth."""

from collections.abc import Callable

import pytest
import torch
from tiny_models import Pipeline, Reference, difference, off

from potluck.ids import SessionId
from potluck.model.schemes import Cache

MakeReference = Callable[..., Reference]

TOKENS = 90


@pytest.fixture
def reference(make_reference: MakeReference) -> Reference:
    return make_reference("deepseek 4")


@pytest.mark.parametrize("cache", ["full", "int8"])
def test_pools_outlive_the_rows_that_they_were_made_of(reference: Reference, cache: Cache) -> None:
    """Windows of 8 rows and 12 more move often."""
    ids = reference.prompt(TOKENS)
    pipeline = Pipeline(reference, [2], cache=cache, chunk=12, slack=12)

    logits = pipeline.run_in_pieces(ids, (12, 12, 1, 1, 5, 12, 12, *(1,) * 35))

    if cache == "full":
        assert difference(logits, reference.logits(ids)) < 1e-5
    else:  # 16 bits in place of 8, of which softmax would magnify the errors
        assert off(logits, reference.logits(ids)) < 0.02


def test_a_trim_beyond_the_window_begins_again_and_one_within_it_goes_on(
    reference: Reference,
) -> None:
    ids = reference.prompt(TOKENS)
    pipeline = Pipeline(reference, [2], chunk=12, slack=12)
    logits = pipeline.run_in_pieces(ids, (12,) * 7 + (1,) * 6)

    pipeline.trim(TOKENS - 2)
    assert pipeline.position == TOKENS - 2
    assert torch.equal(pipeline.run(ids[-2:]), logits[-2:])
    pipeline.trim(40)
    assert pipeline.position == 0
    assert torch.equal(pipeline.run_in_pieces(ids, (12,) * 7 + (6,)), logits)


def test_sessions_go_on_apart_from_a_common_beginning(reference: Reference) -> None:
    ids, others = reference.prompt(TOKENS), reference.prompt(20, seed=1)
    pipeline = Pipeline(reference, [2])
    logits = pipeline.run(ids[:50])

    pipeline.fork(SessionId("other"), 43)
    assert pipeline.position == 43
    forked = pipeline.run(others)
    pipeline.turn_to(SessionId("chat"))
    rest = pipeline.run_in_pieces(ids[50:], (1,) * 10 + (30,))

    assert difference(torch.cat([logits, rest]), reference.logits(ids)) < 1e-5
    whole = torch.cat([ids[:43], others])
    assert difference(forked, reference.logits(whole)[43:]) < 1e-5
