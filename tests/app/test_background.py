"""Blocking work in a thread, its results on the GUI thread."""

import threading

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from potluck_app.background import Background

pytestmark = pytest.mark.qt


def test_results_come_back_on_the_thread_that_asked_in_order(qtbot: QtBot) -> None:
    background = Background("test")
    seen: list[tuple[int, bool, bool]] = []
    here = threading.get_ident()

    def work(number: int) -> tuple[int, bool]:
        return number, threading.get_ident() != here

    for number in range(50):
        background.run(
            lambda number=number: work(number),
            lambda result: seen.append((*result, threading.get_ident() == here)),
        )
    qtbot.waitUntil(lambda: len(seen) == 50)

    assert seen == [(number, True, True) for number in range(50)]
    assert background.close(5)


def test_an_error_is_handed_over_and_the_thread_goes_on(qtbot: QtBot) -> None:
    background = Background("test")
    errors: list[Exception] = []
    done: list[int] = []

    background.run(lambda: 1 // 0, failed=errors.append)
    background.run(lambda: 2, done.append)
    qtbot.waitUntil(lambda: done == [2])

    assert isinstance(errors[0], ZeroDivisionError)
    assert background.close(5)


def test_closing_finishes_what_was_submitted_and_stays_silent(qtbot: QtBot) -> None:
    background = Background("test")
    finished: list[int] = []
    told: list[int] = []

    for number in range(20):
        background.run(lambda number=number: finished.append(number) or number, told.append)
    assert background.close(5)

    assert finished == list(range(20))
    qtbot.wait(0)
    assert len(told) <= 20


class Owner(QObject):
    """Its method is the work; it notes in which thread it is deleted."""

    def __init__(self, deleted_in: list[int]) -> None:
        super().__init__()
        self._deleted_in = deleted_in

    def work(self) -> int:
        return 1

    def __del__(self) -> None:
        self._deleted_in.append(threading.get_ident())


def test_an_object_whose_work_was_done_is_never_deleted_in_the_thread(qtbot: QtBot) -> None:
    deleted_in: list[int] = []
    done: list[int] = []
    for _ in range(200):
        background = Background("test")
        background.run(Owner(deleted_in).work, done.append)
        assert background.close(5)

    background = Background("test")
    for _ in range(200):
        background.run(Owner(deleted_in).work, done.append)
    qtbot.waitUntil(lambda: len(done) >= 200)
    assert background.close(5)
    assert len(deleted_in) == 400
    assert set(deleted_in) == {threading.get_ident()}


def test_a_thread_that_hangs_does_not_keep_the_program(qtbot: QtBot) -> None:
    background = Background("test")
    release = threading.Event()
    background.run(release.wait)

    assert not background.close(0)

    release.set()
