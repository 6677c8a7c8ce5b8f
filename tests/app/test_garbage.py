"""Cycles that hold Qt objects are collected by the GUI thread, and by no other."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from potluck_app.garbage import collect_in_this_thread


class Cycle(QObject):
    """Holds itself, and notes in which thread it was collected."""

    def __init__(self, collected_in: list[int]) -> None:
        super().__init__()
        self.itself = self
        weakref.finalize(self, lambda: collected_in.append(threading.get_ident()))


@pytest.fixture
def parent() -> Iterator[QObject]:
    """Owns the timer, in a process that collects by itself as any does."""
    gc.enable()
    parent = QObject()
    yield parent
    parent.deleteLater()
    gc.disable()


def allocate(kept: list[object]) -> None:
    """Allocate what makes Python collect by itself: objects that stay."""
    kept.extend([] for _ in range(gc.get_threshold()[0] + 1))


def test_no_other_thread_collects(qtbot: QtBot, parent: QObject) -> None:
    collected_in: list[int] = []
    kept: list[object] = []
    gc.collect()
    collect_in_this_thread(parent, interval_ms=1)
    Cycle(collected_in)

    thread = threading.Thread(target=allocate, args=(kept,))
    thread.start()
    thread.join()

    assert collected_in == []
    qtbot.waitUntil(lambda: bool(collected_in))
    assert collected_in == [threading.get_ident()]
