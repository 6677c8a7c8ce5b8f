"""A reply and a load, event by event, without a node."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home, running_model

from potluck.api.values.schema import ModelPhase
from potluck_app.http import Problem
from potluck_app.streams import MOST_LOSSES, Load, Reply, ReplyEnd

pytestmark = pytest.mark.qt

USAGE = b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'
TIMINGS = b'"potluck":{"time_to_first_token_s":0.5,"tokens_per_s":20.0}'


@pytest.fixture
def parent(qtbot: QtBot) -> Iterator[QObject]:
    parent = QObject()
    yield parent
    parent.deleteLater()


class Asked:
    """What a reply asks for, each time."""

    def __init__(self, reply: Reply) -> None:
        self.rests: list[dict[str, object]] = []
        reply.asks.connect(lambda _stream, rest: self.rests.append(rest))
        reply.begin()


class Heard:
    def __init__(self, reply: Reply) -> None:
        self.text: list[str] = []
        self.ends: list[ReplyEnd] = []
        reply.text.connect(self.text.append)
        reply.finished.connect(self.ends.append)


def piece(text: str, *token_ids: int) -> bytes:
    ids = ",".join(str(token_id) for token_id in token_ids or (7,))
    return (
        b'{"model":"guide","choices":[{"index":0,"delta":{"content":"%s"},"token_ids":[%s]}]}'
        % (text.encode(), ids.encode())
    )


def test_pieces_that_come_at_once_are_one_update(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)
    for text in ("Potluck ", "pools ", "computers."):
        reply.stream.received.emit(piece(text))
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    assert heard.text == ["Potluck pools computers."]
    assert [end.error for end in heard.ends] == [None]


def test_the_figures_of_the_last_chunk_are_the_replys(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)
    reply.stream.received.emit(b'{"model":"guide","choices":[],' + USAGE + b"," + TIMINGS + b"}")
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    stats = heard.ends[0].stats
    assert stats is not None
    assert (stats.model, stats.tokens, stats.prompt_tokens) == ("guide", 2, 3)
    assert (stats.time_to_first_token_s, stats.tokens_per_s) == (0.5, 20.0)


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_reply_that_had_its_most_tokens_is_cut(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)

    reply.stream.received.emit(piece("Potluck "))
    reply.stream.received.emit(b'{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}')
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    assert heard.ends[0].cut


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_stopped_reply_tells_the_time_of_its_prompt_from_that_of_loading(
    parent: QObject, *, is_loaded: bool
) -> None:
    """The node's first event comes with the first token, so it does not say when loading ended."""
    clock = Clock()
    reply = Reply(parent, {"seed": 5}, clock)
    reply.begin()
    heard = Heard(reply)
    if not is_loaded:
        reply.show_model(home(model=running_model(state="loading")))
        clock.now += 30
    reply.show_model(home(model=running_model(state="ready")))
    clock.now += 4
    reply.show_model(home(model=running_model(state="ready")))
    reply.stream.received.emit(piece("Half"))
    reply.stop()

    stats = heard.ends[0].stats
    assert stats is not None
    assert (stats.loading_s, stats.time_to_first_token_s) == (0 if is_loaded else 30, 4)


def test_an_error_in_the_middle_keeps_what_came(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)
    reply.stream.received.emit(piece("Half"))
    reply.stream.received.emit(b'{"error":{"message":"Laptop left.","type":"server_error"}}')
    reply.stream.ended.emit(None)

    assert heard.text == ["Half"]
    assert [end.error for end in heard.ends] == ["Laptop left."]


def test_a_refused_reply_says_why(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)
    reply.stream.ended.emit(Problem("The prompt is too long."))

    assert heard.text == []
    assert [end.error for end in heard.ends] == ["The prompt is too long."]


LOSSES = [
    None,  # no [DONE]: the connection broke, whatever Qt says
    Problem("x", unreachable=True),
    b'{"error":{"message":"Potluck stops.","type":"server_error","code":"closed"}}',
]


def lose(reply: Reply, how: Problem | bytes | None) -> None:
    """Lose the node of a reply in this way."""
    if isinstance(how, bytes):
        reply.stream.received.emit(how)
    else:
        reply.stream.ended.emit(how)


@pytest.mark.parametrize("how", LOSSES)
def test_a_reply_whose_node_is_lost_goes_on_after_the_tokens_that_came(
    parent: QObject, qtbot: QtBot, how: Problem | bytes | None
) -> None:
    reply = Reply(parent, {"seed": 5})
    asked = Asked(reply)
    heard = Heard(reply)
    reply.stream.received.emit(piece("Pot", 1, 2))
    lose(reply, how)
    qtbot.waitUntil(lambda: len(asked.rests) == 2)
    reply.stream.received.emit(piece("luck", 3))
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    assert asked.rests == [
        {"seed": 5},
        {"seed": 5, "known_token_ids": (1, 2), "model": "guide"},
    ]
    assert "".join(heard.text) == "Potluck"
    assert [end.error for end in heard.ends] == [None]


@pytest.mark.parametrize("how", LOSSES)
def test_a_reply_that_loses_one_node_after_the_other_ends(
    parent: QObject, qtbot: QtBot, how: Problem | bytes | None
) -> None:
    reply = Reply(parent, {"seed": 5})
    asked = Asked(reply)
    heard = Heard(reply)
    for losses in range(1, MOST_LOSSES + 1):
        qtbot.waitUntil(lambda count=losses: len(asked.rests) == count)
        lose(reply, how)

    assert len(asked.rests) == MOST_LOSSES
    assert "interrupted" in (heard.ends[0].error or "")


def test_text_that_is_no_tokens_is_shown_when_the_reply_is_whole(
    parent: QObject, qtbot: QtBot
) -> None:
    """The end of a reply that was broken off has such text too, and the rest of it follows."""
    reply = Reply(parent, {"seed": 5})
    asked = Asked(reply)
    heard = Heard(reply)
    end = b'{"choices":[{"index":0,"delta":{"content":"%s"},"token_ids":[]}]}'
    reply.stream.received.emit(piece("Pot"))
    reply.stream.received.emit(end % b"?")
    reply.stream.ended.emit(None)
    qtbot.waitUntil(lambda: len(asked.rests) == 2)
    reply.stream.received.emit(piece("luck"))
    reply.stream.received.emit(end % b".")
    reply.stream.received.emit(b"[DONE]")
    reply.stream.ended.emit(None)

    assert "".join(heard.text) == "Potluck."


def test_a_reply_that_is_stopped_while_its_node_is_lost_ends(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    asked = Asked(reply)
    heard = Heard(reply)
    reply.stream.received.emit(piece("Half"))
    reply.stream.ended.emit(None)
    reply.stop()

    assert [end.stopped for end in heard.ends] == [True]
    assert len(asked.rests) == 1


def test_a_stopped_reply_ends_once(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)
    reply.stream.received.emit(piece("Half"))
    reply.stop()
    reply.stop()

    assert heard.text == ["Half"]
    assert [end.stopped for end in heard.ends] == [True]


def test_an_event_that_is_nonsense_is_passed_over(parent: QObject) -> None:
    reply = Reply(parent, {"seed": 5})
    reply.begin()
    heard = Heard(reply)
    for data in (b"", b"{", b"[1]", b'{"choices": 5}', piece("text"), b"[DONE]"):
        reply.stream.received.emit(data)
    reply.stream.ended.emit(None)

    assert heard.text == ["text"]
    assert [end.error for end in heard.ends] == [None]


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


@pytest.mark.parametrize("first", ["loading", "ready"])
def test_a_reply_learns_from_the_nodes_states_when_the_model_is_ready(
    parent: QObject, first: ModelPhase
) -> None:
    backend = ScriptedBackend()
    backend.setParent(parent)
    backend.say(home(model=running_model(state=first)))
    reply = backend.chat([])
    backend.say(home(model=running_model()))
    reply.stream.received.emit(piece("Half"))

    stats = reply.figures()
    assert stats is not None
    assert stats.time_to_first_token_s > 0
