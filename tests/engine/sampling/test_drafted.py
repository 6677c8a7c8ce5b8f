"""Of a step with guesses, the tokens count that single steps would have chosen."""

from collections.abc import Sequence

import pytest
import torch

from potluck.engine.sampling.drafted import choose_drafted
from potluck.engine.sampling.sampler import Choice
from potluck.errors import EngineError

POSITION = 40


def chosen(tokens: Sequence[int | None], drafts: Sequence[int]) -> tuple[list[int], list[int]]:
    """What is chosen where these are the tokens of the rows (None: none can be chosen), and at which positions."""
    asked: list[int] = []

    def choose(position: int, row: torch.Tensor) -> Choice:
        asked.append(position)
        if (token := tokens[int(row[0])]) is None:
            raise EngineError("not a number")
        return Choice(token_id=token)

    rows = torch.arange(len(drafts) + 1.0)[:, None]
    return [c.token_id for c in choose_drafted(rows, drafts, POSITION, choose)], asked


@pytest.mark.parametrize(
    ("tokens", "count"),
    [((5, 6, 7, 8), 4), ((5, 6, 9, 8), 3), ((9, 6, 7, 8), 1), ((5, 6, None, 8), 2)],
    ids=["all", "one wrong", "the first wrong", "the third cannot be chosen"],
)
def test_tokens_are_chosen_up_to_the_first_that_was_not_guessed(
    tokens: Sequence[int | None], count: int
) -> None:
    found, asked = chosen(tokens, (5, 6, 7))

    assert found == list(tokens[:count])
    assert asked[:count] == list(range(POSITION + 1, POSITION + 1 + count))


def test_a_step_whose_first_token_cannot_be_chosen_fails() -> None:
    with pytest.raises(EngineError):
        chosen((None, 6), (5,))
