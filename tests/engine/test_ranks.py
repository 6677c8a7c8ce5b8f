"""Ranks of a group compute together what one would compute alone."""

from collections.abc import Callable

import pytest
from fake_ranks import RankedReference
from model_variants import VARIANTS
from tiny_models import Pipeline, Reference, difference

MakeReference = Callable[..., Reference]

TOKENS = 40  # more than any window of the variants, so that windows show
TOLERANCE = 1e-4  # of the largest logit: sums are added in another order than by one rank


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_ranks_have_the_logits_of_the_whole(
    make_reference: MakeReference, variant: str
) -> None:
    """A prompt comes in chunks and single tokens; all ranks have the same bits after each."""
    reference = make_reference(variant)
    ids = reference.prompt(TOKENS)

    logits = Pipeline(RankedReference.of(reference, (1, 1))).run_in_pieces(ids, (30,) + (1,) * 10)

    assert difference(logits, reference.logits(ids)) < TOLERANCE
