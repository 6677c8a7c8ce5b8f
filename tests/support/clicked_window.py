"""Run the program and click like a person, by the names of what is to be clicked.

    python clicked_window.py HOME NAME…

The program keeps everything in HOME. Each NAME is clicked once, as soon as a person could do so: the widget is
visible, enabled and nothing lies over its middle; of `A+B`, B is clicked once A is visible too. Standard output has a line of JSON for every event, each with its
`at` in seconds since the start: {"event": "shown"}, then {"event": "click", "name": …, "text": …}, and at last
{"event": "reply", "text": …, "status": …} when a reply has ended. The program runs on until SIGTERM.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import TypeVar

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

import potluck_app.__main__ as program
from potluck_app.application import Application
from potluck_app.views.conversation.message import ReplyMessage

START = time.monotonic()
LOOK_MS = 50
_Widget = TypeVar("_Widget", bound=QWidget)


def tell(event: str, **more: object) -> None:
    print(
        json.dumps({"event": event, "at": round(time.monotonic() - START, 2), **more}), flush=True
    )


class Person(QObject):
    """Clicks these names one after the other, then waits for the reply."""

    def __init__(self, parent: QObject, names: list[str]) -> None:
        super().__init__(parent)
        self._names = names
        self._has_seen = False
        self._timer = QTimer(self, interval=LOOK_MS)
        self._timer.timeout.connect(self._look)
        self._timer.start()

    def _look(self) -> None:
        if not self._has_seen and any(
            window.isVisible() for window in QApplication.topLevelWidgets()
        ):
            self._has_seen = True
            tell("shown")
        if not self._names:
            self._look_for_reply()
        elif (target := ready(self._names[0])) is not None:
            name = self._names.pop(0)
            tell("click", name=name, text=target.property("text"))
            QTest.mouseClick(target, Qt.MouseButton.LeftButton)

    def _look_for_reply(self) -> None:
        for view in everything(ReplyMessage):
            if view.isVisible() and view.message.status != "streaming":
                tell("reply", text=view.message.text, status=view.message.status)
                self._timer.stop()


def everything(kind: type[_Widget]) -> Iterator[_Widget]:
    for window in QApplication.topLevelWidgets():
        yield from window.findChildren(kind)


def ready(names: str) -> QWidget | None:
    """Return what is to be clicked; None: it cannot be clicked yet."""
    *others, name = names.split("+")
    if any(next(reachable(other), None) is None for other in others):
        return None
    return next(reachable(name), None)


def reachable(name: str) -> Iterator[QWidget]:
    """Yield the widgets of this name that a click in their middle would reach."""
    for widget in everything(QWidget):
        if widget.objectName() == name and widget.isVisible() and widget.isEnabled():
            middle = widget.rect().center()
            under = widget.window().childAt(widget.mapTo(widget.window(), middle))
            if under is not None and (under is widget or widget.isAncestorOf(under)):
                yield widget


class Clicked(Application):
    """The program, with a person before it."""

    def start(self, *, worker: bool = False, hidden: bool = False) -> None:
        super().start(worker=worker, hidden=hidden)
        Person(self, sys.argv[2:])


if __name__ == "__main__":
    program.Application = Clicked
    raise SystemExit(program.main(["--home", sys.argv[1]]))
