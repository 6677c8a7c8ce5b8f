"""A reply and a load, event by event, without a node."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from potluck_app.http import Problem
from potluck_app.streams import Load, Reply, ReplyEnd

pytestmark = pytest.mark.qt

USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'
TIMINGS = b'"potluck":{"time_to_first_token_s":0.5,"tokens_per_s":20.0}'


@pytest.fixture
def parent(qtbot: QtBot) -> Iterator[QObject]:
    parent = QObject()
    yield parent
    parent.deleteLater()


class Heard:
    def __init__(self, reply: Reply) -> None:
        self.text: list[str] = []
        self.ends: list[ReplyEnd] = []
        reply.text.connect(self.text.append)
        reply.finished.connect(self.ends.append)


def piece(text: str) -> bytes:
    return b'{"choices":[{"index":0,"delta":{"content":"%s"}}]}' % text.encode()


def test_pieces_that_come_at_once_are_one_update(parent: QObject) -> None:
    reply = Reply(parent)
    heard = Heard(reply)
    for text in ("Potluck ", "pools ", "computers."):
        reply.stream.received.emit(piece(text))
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    assert heard.text == ["Potluck pools computers."]
    assert heard.ends == [ReplyEnd()]


def test_the_figures_of_the_last_chunk_are_the_replys(parent: QObject) -> None:
    reply = Reply(parent)
    heard = Heard(reply)
    reply.stream.received.emit(b'{"model":"guide","choices":[],' + USAGE + b"," + TIMINGS + b"}")
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    stats = heard.ends[0].stats
    assert stats is not None
    assert (stats.model, stats.tokens, stats.prompt_tokens) == ("guide", 2, 3)
    assert (stats.time_to_first_token_s, stats.tokens_per_s) == (0.5, 20.0)


def test_an_error_in_the_middle_keeps_what_came(parent: QObject) -> None:
    reply = Reply(parent)
    heard = Heard(reply)
    reply.stream.received.emit(piece("Half"))
    reply.stream.received.emit(b'{"error":{"message":"Laptop left.","type":"server_error"}}')
    reply.stream.ended.emit(None)

    assert heard.text == ["Half"]
    assert heard.ends == [ReplyEnd(error="Laptop left.")]


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (None, "interrupted"),  # no [DONE]: the connection broke, whatever Qt says
        (Problem("x", unreachable=True), "interrupted"),
        (Problem("The prompt is too long."), "too long"),
    ],
)
def test_a_reply_without_its_end_says_why(
    parent: QObject, problem: Problem | None, sentence: str
) -> None:
    reply = Reply(parent)
    heard = Heard(reply)
    reply.stream.received.emit(piece("Half"))
    reply.stream.ended.emit(problem)

    assert heard.text == ["Half"]
    assert sentence in (heard.ends[0].error or "")


def test_a_stopped_reply_ends_once(parent: QObject) -> None:
    reply = Reply(parent)
    heard = Heard(reply)
    reply.stream.received.emit(piece("Half"))
    reply.stop()
    reply.stop()

    assert heard.text == ["Half"]
    assert heard.ends == [ReplyEnd(stopped=True)]


def test_an_event_that_is_nonsense_is_passed_over(parent: QObject) -> None:
    reply = Reply(parent)
    heard = Heard(reply)
    for data in (b"", b"{", b"[1]", b'{"choices": 5}', piece("text"), b"[DONE]"):
        reply.stream.received.emit(data)
    reply.stream.ended.emit(None)

    assert heard.text == ["text"]
    assert heard.ends == [ReplyEnd()]


def test_a_load_tells_its_progress_and_is_ready(parent: QObject) -> None:
    load = Load(parent)
    states: list[str] = []
    failed: list[Problem] = []
    load.progress.connect(lambda progress: states.append(progress.state))
    load.failed.connect(failed.append)
    for state in (b"planning", b"streaming", b"ready"):
        load.stream.received.emit(b'{"state":"%s"}' % state)
    load.stream.ended.emit(None)

    assert states == ["planning", "streaming", "ready"]
    assert failed == []


@pytest.mark.parametrize(
    ("event", "end", "message"),
    [
        (b'{"state":"failed","message":"No room."}', None, "No room."),
        (b'{"state":"planning"}', None, "before it was done"),
        (b'{"state":"planning"}', Problem("Gone."), "Gone."),
    ],
)
def test_a_load_that_does_not_end_well_fails_once(
    parent: QObject, event: bytes, end: Problem | None, message: str
) -> None:
    load = Load(parent)
    failed: list[Problem] = []
    load.failed.connect(failed.append)
    load.stream.received.emit(event)
    if not failed:
        load.stream.ended.emit(end)

    assert [message in problem.message for problem in failed] == [True]
