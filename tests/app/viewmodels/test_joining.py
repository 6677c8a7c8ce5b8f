"""Computers that could join."""

from typing import Any

import pytest
from fake_backend import computer
from scripted_window import STUDY, home, pairing, study_pc

from potluck_app.viewmodels.joining import join_cards

MAC = computer("MacBook Air", "2", color=1)


@pytest.mark.parametrize(
    ("pairings", "step", "code"),
    [
        ((), "found", None),
        ((pairing("asking"),), "asking", None),
        ((pairing("confirm"),), "confirm", "427 918"),
        ((pairing("accepted"),), "waiting", "427 918"),
        ((pairing("refused"),), "refused", None),
        ((pairing("failed", message="Too late."),), "failed", None),
    ],
)
def test_a_joinable_computer_says_what_is_next(pairings: Any, step: str, code: str | None) -> None:
    (card,) = join_cards(home(study_pc(), pairings=pairings))

    assert (card.step, card.code) == (step, code)


def test_members_ignored_and_unwilling_computers_have_no_join_card() -> None:
    unwilling = study_pc(joinable=False)

    assert join_cards(home(MAC, unwilling)) == []
    assert join_cards(home(study_pc()), frozenset({STUDY})) == []
