"""A streamed reply as one text, whose reasoning stands in tags."""

import pytest

from potluck.api.v1.answer_shapes import Delta
from potluck.api.v1.tagged_reply import TaggedReply


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        ([Delta(content="Hel"), Delta(content="lo")], "Hello"),
        (
            [Delta(reasoning_content="H"), Delta(reasoning_content="m."), Delta(content="Yes.")],
            "<think>\nHm.\n</think>\n\nYes.",
        ),
        ([Delta(reasoning_content="Hm.", content="Yes.")], "<think>\nHm.\n</think>\n\nYes."),
        ([Delta(role="assistant", content=""), Delta(), Delta(content="a")], "a"),
        ([Delta(reasoning_content="Hm."), Delta(content="")], "<think>\nHm."),
    ],
)
def test_reasoning_comes_first_and_in_tags(deltas: list[Delta], text: str) -> None:
    reply = TaggedReply()

    assert "".join(map(reply.more, deltas)) == text


def test_an_answer_that_goes_on_has_no_thoughts_in_its_middle() -> None:
    reply = TaggedReply(without_thoughts=True)
    deltas = [
        Delta(reasoning_content="Hm."),
        Delta(reasoning_content="So.", content=" and"),
        Delta(content=" more."),
    ]

    assert "".join(map(reply.more, deltas)) == " and more."
