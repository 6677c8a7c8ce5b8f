"""One window per node."""

from pathlib import Path

import pytest
from PySide6.QtNetwork import QLocalSocket
from pytestqt.qtbot import QtBot

from potluck_app.single_instance import SingleInstance

pytestmark = pytest.mark.qt


def test_a_second_start_shows_the_first_window_and_ends(qtbot: QtBot, tmp_path: Path) -> None:
    first, second = SingleInstance(tmp_path), SingleInstance(tmp_path)
    assert first.claim()

    with qtbot.waitSignal(first.asked_to_show):
        assert not second.claim()
    first.close()


def test_another_home_is_another_window(qtbot: QtBot, tmp_path: Path) -> None:
    one, other = SingleInstance(tmp_path / "a"), SingleInstance(tmp_path / "b")

    assert one.claim()
    assert other.claim()
    one.close()
    other.close()


def test_the_claim_ends_with_the_window(qtbot: QtBot, tmp_path: Path) -> None:
    first = SingleInstance(tmp_path)
    assert first.claim()
    first.close()

    again = SingleInstance(tmp_path)

    assert again.claim()
    again.close()


def test_a_second_start_hands_over_what_it_shall_open(qtbot: QtBot, tmp_path: Path) -> None:
    first, second = SingleInstance(tmp_path), SingleInstance(tmp_path)
    assert first.claim()

    with qtbot.waitSignal(first.asked_to_open) as opened:
        assert not second.claim("Modell ü.gguf", "/home/ann")

    assert opened.args == ["Modell ü.gguf", "/home/ann"]
    first.close()


@pytest.mark.parametrize(
    "sent", [b"", b"show\n", b"[1, 2]", b"[]", b'"a"', b"\xff", b"[" * 100_000]
)
def test_what_cannot_be_read_only_shows_the_window(
    qtbot: QtBot, tmp_path: Path, sent: bytes
) -> None:
    first = SingleInstance(tmp_path)
    assert first.claim()
    stranger = QLocalSocket()

    with qtbot.waitSignal(first.asked_to_show):
        stranger.connectToServer(first._name)
        assert stranger.waitForConnected(1000)
        stranger.write(sent)
        stranger.waitForBytesWritten(1000)
        stranger.disconnectFromServer()

    first.close()
