"""Answers that are kept for clients that ask again."""

import pytest

from potluck.api.events import Piece
from potluck.api.prompts import GenerationRequest, TextPrompt
from potluck.front import kept
from potluck.front.kept import KEPT_S, KeptAnswers

PIECE = Piece(text="a", token_ids=(1,))


def asked(number: int = 0) -> GenerationRequest:
    return GenerationRequest(prompt=TextPrompt("Hi"), id=str(number))


def test_an_answer_is_kept_for_the_same_request_alone() -> None:
    answers = KeptAnswers()
    answers.begin(asked(1)).append(PIECE)

    assert answers.begin(asked(2)) == []
    assert answers.begin(asked(1)) == [PIECE]


def test_who_asks_again_does_not_add_to_the_list_of_who_is_still_answered() -> None:
    answers = KeptAnswers()
    first = answers.begin(asked())
    answers.begin(asked()).append(PIECE)

    assert first == []


def test_an_old_answer_is_forgotten() -> None:
    now = 0.0
    answers = KeptAnswers(lambda: now)
    answers.begin(asked()).append(PIECE)
    now = KEPT_S + 1

    assert answers.begin(asked()) == []


def test_the_oldest_answers_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "EVENTS", 3)
    answers = KeptAnswers()
    for number in range(3):
        answers.begin(asked(number)).extend([PIECE, PIECE])
    answers.begin(asked(9))

    assert answers.begin(asked(2)) == [PIECE, PIECE]
    assert answers.begin(asked(0)) == []
