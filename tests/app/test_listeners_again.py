"""The addresses for programs are open again after the node was started again."""

import socket

import pytest
from fake_backend import TOKEN, Server
from pytestqt.qtbot import QtBot

from potluck_app.backend import Backend
from potluck_app.http import Endpoint

pytestmark = [pytest.mark.qt, pytest.mark.net]


def endpoint_of(server: Server) -> Endpoint:
    return Endpoint(port=server.port, token=TOKEN)


def test_a_listener_that_was_open_is_opened_again_with_the_next_node(
    server: Server, qtbot: QtBot
) -> None:
    first = Server()
    found = [first]
    backend = Backend(lambda: endpoint_of(found[0]))
    with qtbot.waitSignal(backend.state_changed):
        backend.start()
    backend.open_listener(0)
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.listeners))
    before = first.backend.current.listeners

    found[0] = server
    first.close()

    qtbot.waitUntil(lambda: server.backend.current.listeners == before)
    backend.close()


def test_a_listener_of_other_computers_is_opened_again_with_its_key(
    server: Server, qtbot: QtBot
) -> None:
    first = Server()
    found = [first]
    backend = Backend(lambda: endpoint_of(found[0]))
    with qtbot.waitSignal(backend.state_changed):
        backend.start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    backend.open_listener(port, host="127.0.0.2", key="k" * 32)
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.listeners))
    found[0] = server
    first.close()

    qtbot.waitUntil(lambda: bool(server.backend.current.listeners))
    assert server.backend.listened[-1].key == "k" * 32
    backend.close()
