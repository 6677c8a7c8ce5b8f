"""What a reply waits for, in the words of the window."""

import pytest

from potluck.api.events import Reading, Waiting
from potluck.api.v1.answers import progress_text
from potluck_app.viewmodels.awaited import Awaited, awaited


def test_what_the_node_says_is_said_to_the_person() -> None:
    read = progress_text(Reading(tokens=512, total=2048))
    first, third = (progress_text(Waiting(place=p, seconds=s)) for p, s in ((1, None), (3, 95.0)))

    assert awaited(read) == Awaited("Reading your message · 25 %", 0.25)
    assert awaited(first) == Awaited("Waits for the answer before it")
    assert awaited(third) == Awaited("Waits for 3 answers before it · about 2 min")


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "keep-alive",
        "loading Qwen3, 30%",
        "reading, x of y tokens",
        "reading, 1 of 2 tokens, so",
    ],
)
def test_other_comments_say_nothing(comment: str) -> None:
    assert awaited(comment) is None


def test_nonsense_is_no_more_than_all() -> None:
    assert awaited("reading, 9 of 3 tokens") == Awaited("Reading your message · 100 %", 1.0)
    assert awaited("reading, 9 of 0 tokens") == Awaited("Reading your message · 0 %", 0.0)
