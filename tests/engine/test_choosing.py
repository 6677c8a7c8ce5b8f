"""The tokens with the highest scores are chosen, always by the same rule."""

import torch

from potluck.engine.choosing import choose


def test_as_many_as_wanted_are_chosen_by_their_scores() -> None:
    scores = torch.randn(5, 40)

    chosen = choose(scores, 8)

    assert torch.equal(chosen.sum(-1), torch.full((5,), 8))
    least = scores.masked_fill(~chosen, torch.inf).amin(-1)
    assert (scores.masked_fill(chosen, -torch.inf).amax(-1) < least).all()


def test_of_equal_scores_those_of_the_earlier_tokens_are_chosen_among_however_many() -> None:
    scores = torch.tensor([[1.0, 0.0, 2.0, 0.0, -0.0, 0.0, 1.0]])

    assert choose(scores, 5).tolist() == [[True, True, True, True, False, False, True]]
    more = torch.cat((scores, torch.full((1, 3), -torch.inf)), 1)  # of tokens that come later
    assert torch.equal(choose(more, 5)[:, :7], choose(scores, 5))


def test_a_score_that_is_no_number_is_chosen_so_that_it_shows() -> None:
    scores = torch.tensor([[0.0, torch.nan, 3.0, 1.0]])

    assert choose(scores, 2).tolist() == [[False, True, True, False]]
