"""Signals of the installed Qt, in the numbers that streams of tokens need."""

import sys

import pytest
from PySide6.QtCore import QObject, Signal
from pytestqt.qtbot import QtBot

pytestmark = pytest.mark.qt


class Emitter(QObject):
    flag = Signal(bool)
    thing = Signal(object)


def test_a_signal_survives_five_thousand_emits(qtbot: QtBot) -> None:
    """PySide6 6.12.0 kills Python 3.11 after some 570: it gives away references to True."""
    emitter, seen = Emitter(), []
    emitter.flag.connect(seen.append)
    emitter.thing.connect(seen.append)
    before = sys.getrefcount(True)

    for _ in range(5000):
        emitter.flag.emit(True)
        emitter.thing.emit(True)

    assert len(seen) == 10_000
    seen.clear()
    assert sys.getrefcount(True) > before - 100
