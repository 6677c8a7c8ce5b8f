"""One window per node."""

from pathlib import Path

import pytest
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
