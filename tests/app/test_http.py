"""HTTP on Qt's loop, against a socket that answers as it is told."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from potluck_app.http import Call, Endpoint, EventStream, Http, Problem

pytestmark = [pytest.mark.qt, pytest.mark.net]


class Answer(msgspec.Struct):
    value: int


class Node:
    """Answers one connection after the other with these bytes, then closes it."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.answer = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                data = b""
                while b"\r\n\r\n" not in data and (more := connection.recv(65536)):
                    data += more
                self.requests.append(data)
                connection.sendall(self.answer)

    def close(self) -> None:
        with suppress(OSError):  # macOS: it is connected to nobody
            self._socket.shutdown(socket.SHUT_RDWR)  # ends `accept` on Linux
        self._socket.close()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.close()


@pytest.fixture
def http(node: Node, qtbot: QtBot) -> Iterator[Http]:
    parent = QObject()
    yield Http(Endpoint(port=node.port, token="key"), parent)
    parent.deleteLater()


def response(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def result_of(qtbot: QtBot, start: Callable[[Call], None]) -> object:
    """The answer of a call, or its Problem."""
    heard: list[object] = []
    call = Call().then(heard.append, heard.append)
    start(call)
    qtbot.waitUntil(lambda: bool(heard))
    return heard[0]


def test_an_answer_is_decoded(node: Node, http: Http, qtbot: QtBot) -> None:
    node.answer = response("200 OK", b'{"value": 5}')

    answer = result_of(qtbot, lambda call: http.call(call, "GET", "/cluster", answer=Answer))

    assert answer == Answer(5)
    assert node.requests[0].startswith(b"GET /cluster HTTP/1.1\r\n")
    assert b"authorization: bearer key\r\n" in node.requests[0].lower()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            response(
                "409 Conflict", b'{"error": {"code": "busy", "message": "Lent.", "data": {}}}'
            ),
            Problem("Lent.", code="busy"),
        ),
        (
            response("400 Bad", b'{"error": {"message": "So not.", "type": "x", "code": null}}'),
            Problem("So not."),
        ),
        (
            response("500 Oops", b"<html>", "text/html"),
            Problem("Potluck's background process refused this (status 500)."),
        ),
        (
            response("200 OK", b'{"value": "five"}'),
            Problem("The answer of Potluck's background process could not be read."),
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
            Problem("Potluck's background process ended in the middle.", unreachable=True),
        ),
        (b"", Problem("Potluck's background process does not answer.", unreachable=True)),
    ],
)
def test_whatever_goes_wrong_is_one_sentence(
    node: Node, http: Http, qtbot: QtBot, answer: bytes, problem: Problem
) -> None:
    node.answer = answer

    assert result_of(qtbot, lambda call: http.call(call, "GET", "/", answer=Answer)) == problem


def test_a_redirect_is_not_followed(node: Node, http: Http, qtbot: QtBot) -> None:
    node.answer = (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    )

    assert result_of(qtbot, lambda call: http.call(call, "GET", "/")) is None
    assert len(node.requests) == 1


def events_of(qtbot: QtBot, http: Http) -> tuple[list[bytes], Problem | None]:
    stream = EventStream(http)
    received: list[bytes] = []
    ended: list[Problem | None] = []
    stream.received.connect(received.append)
    stream.ended.connect(ended.append)
    http.stream(stream, "POST", "/events", {"a": 1})
    qtbot.waitUntil(lambda: bool(ended))
    return received, ended[0]


def test_a_stream_is_its_events_and_one_end(node: Node, http: Http, qtbot: QtBot) -> None:
    node.answer = response("200 OK", b"data: one\n\n: silence\n\ndata: two\n\n")

    assert events_of(qtbot, http) == ([b"one", b"two"], None)
    assert node.requests[0].endswith(b'{"a":1}')


def test_a_stream_that_is_refused_has_no_events(node: Node, http: Http, qtbot: QtBot) -> None:
    body = b'{"error": {"code": "busy", "message": "data: no\\n\\n", "data": {}}}'
    node.answer = response("409 Conflict", body)

    received, problem = events_of(qtbot, http)

    assert received == []
    assert problem is not None
    assert problem.code == "busy"


def test_a_stream_that_breaks_says_so_after_what_came(node: Node, http: Http, qtbot: QtBot) -> None:
    node.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: one\n\n"

    received, problem = events_of(qtbot, http)

    assert received == [b"one"]
    assert problem is not None
    assert problem.unreachable


def test_a_closed_stream_says_nothing_more(node: Node, http: Http, qtbot: QtBot) -> None:
    node.answer = response("200 OK", b"data: one\n\n")
    stream = EventStream(http)
    heard: list[object] = []
    stream.received.connect(heard.append)
    stream.ended.connect(heard.append)
    stream.close()
    http.stream(stream, "GET", "/events")

    assert events_of(qtbot, http) == ([b"one"], None)  # a later one, to its end
    assert heard == []


def test_what_a_stream_says_beside_its_events_is_heard(
    node: Node, http: Http, qtbot: QtBot
) -> None:
    node.answer = response("200 OK", b": waiting, place 2\n\ndata: one\n\n")
    stream = EventStream(http)
    heard: list[object] = []
    stream.commented.connect(heard.append)
    stream.received.connect(heard.append)
    http.stream(stream, "GET", "/events")

    with qtbot.waitSignal(stream.ended):
        pass

    assert heard == ["waiting, place 2", b"one"]
