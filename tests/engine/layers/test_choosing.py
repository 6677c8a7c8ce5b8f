"""The tokens with the highest scores are chosen, always by the same rule."""

import pytest
import torch

from potluck.engine.layers.choosing import Choice, choose, column_count, split_columns, with_columns


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_choice_travels_behind_hidden_states_of_any_dtype(dtype: torch.dtype) -> None:
    hidden, position = torch.randn(6, 10).to(dtype), 5
    causal = torch.ones(6, 11, dtype=torch.bool).tril(position)
    mask = choose(torch.randn(6, 11).masked_fill(~causal, -torch.inf), 8) & causal

    sent = with_columns(hidden, Choice(8, position, mask=mask))

    assert sent.shape == (6, 10 + column_count(8, 11, dtype))
    received, choice = split_columns(sent, 10, 8, position)
    assert torch.equal(received, hidden)
    assert choice is not None
    assert torch.equal(choice.mask(causal), mask)


def test_where_tokens_see_all_no_columns_travel() -> None:
    hidden = torch.randn(3, 10)

    assert column_count(8, 8, torch.float32) == column_count(None, 99, torch.float32) == 0
    assert split_columns(hidden, 10, 8, 5) == (hidden, None)


def test_positions_that_another_computer_sends_are_never_beyond_what_is_cached() -> None:
    wild = torch.tensor([[-7, 1 << 30, 2]], dtype=torch.int32).view(torch.float32)

    _, choice = split_columns(torch.cat((torch.zeros(1, 4), wild), 1), 4, 3, 20)

    assert choice is not None
    assert choice.places.tolist() == [[0, 20, 2]]
