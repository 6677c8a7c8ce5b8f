"""Blocking work in a thread, its results on the GUI thread."""

import threading

import pytest
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


def test_a_thread_that_hangs_does_not_keep_the_program(qtbot: QtBot) -> None:
    background = Background("test")
    release = threading.Event()
    background.run(release.wait)

    assert not background.close(0)

    release.set()
