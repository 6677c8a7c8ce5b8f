"""Server-sent events out of bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_app.sse import MAX_EVENT, EventParser, EventTooLargeError

STREAM = b': hello\n\ndata: {"a": 1}\n\nevent: x\r\ndata: one\r\ndata: two\r\n\r\ndata:bare\n\n\n'
EVENTS = [b'{"a": 1}', b"one\ntwo", b"bare"]


def test_comments_and_other_fields_are_skipped_and_data_lines_joined() -> None:
    assert EventParser().feed(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_bytes_may_arrive_in_any_pieces(cuts: list[int]) -> None:
    parser = EventParser()
    edges = [0, *sorted(cuts), len(STREAM)]

    events = [
        event
        for begin, end in itertools.pairwise(edges)
        for event in parser.feed(STREAM[begin:end])
    ]

    assert events == EVENTS


def test_an_event_waits_for_its_end() -> None:
    parser = EventParser()

    assert parser.feed(b"data: half") == []
    assert parser.feed(b" more\n") == []
    assert parser.feed(b"\n") == [b"half more"]


@pytest.mark.parametrize("piece", [b"x" * (1 << 20), b"data: " + b"x" * ((1 << 20) - 7) + b"\n"])
def test_an_event_without_an_end_is_refused_before_it_fills_the_memory(piece: bytes) -> None:
    parser = EventParser()

    for _ in range(MAX_EVENT // len(piece)):
        assert parser.feed(piece) == []

    with pytest.raises(EventTooLargeError):
        parser.feed(piece * 2)


def test_the_last_comment_can_be_asked_for_once() -> None:
    parser = EventParser()

    assert parser.feed(b": waiting, place 2\n\n: waiting, pl") == []
    assert parser.take_comment() == "waiting, place 2"
    assert parser.take_comment() == ""
    assert parser.feed(b"ace 1\n\n:" + b"x" * 5000 + b"\n\n") == []
    assert len(parser.take_comment()) <= 1000
