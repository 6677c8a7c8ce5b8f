"""What comes back from an address."""

import errno
import socket
from collections.abc import Iterator

import pytest

from potluck.doctor.looks import dialling
from potluck.doctor.looks.dialling import best_answer, dial
from potluck.wire.messages import Address

pytestmark = pytest.mark.net


@pytest.fixture
def port() -> Iterator[int]:
    """Of a listener on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_listener_answers_and_a_computer_without_one_refuses(port: int) -> None:
    assert dial("127.0.0.1", port) == "open"
    assert dial("127.0.0.1", closed()) == "refused"


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (TimeoutError(), "silent"),
        (OSError(errno.ETIMEDOUT, ""), "silent"),
        (OSError(errno.EHOSTUNREACH, ""), "unreachable"),
        (OSError(errno.ENETUNREACH, ""), "unreachable"),
    ],
)
def test_each_way_not_to_answer_has_a_word(
    error: OSError, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> socket.socket:
        raise error

    monkeypatch.setattr(dialling.socket, "create_connection", fail)

    assert dial("10.0.0.9", 1) == answer


def test_the_best_of_several_addresses_counts(port: int) -> None:
    there, shut = Address(host="127.0.0.1", port=port), Address(host="127.0.0.1", port=closed())

    assert best_answer((shut, there)) == "open"
    assert best_answer((shut,)) == "refused"
    assert best_answer(()) is None
