"""The one thread that reads and writes the conversations on disk."""

import logging
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from PySide6.QtCore import QObject, Signal

from potluck_app.background import Background
from potluck_app.chats.database import why
from potluck_app.chats.history import History

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Keeper(QObject):
    """Runs what reads and writes the history, in the order in which it was asked for.

    Signals:
        trouble: a sentence about something that could not be read or kept.
        unkept: why nothing of this run is kept, which stays so until its end.
    """

    trouble = Signal(str)
    unkept = Signal(str)

    def __init__(self, history: History, parent: QObject) -> None:
        super().__init__(parent)
        self._history = history
        self._thread = Background("history", self)
        self._thread.run(history.open, self._on_opened, self._on_unread)

    def read(self, work: Callable[[History], T], done: Callable[[T], object]) -> None:
        """Call `done` with what `work` returns. If it fails, `trouble` says so."""
        self._thread.run(lambda: work(self._history), done, self._on_unread)

    def write(
        self, work: Callable[[History], object], done: Callable[[], object] = lambda: None
    ) -> None:
        """Run `work`, and call `done` after it, also if it failed."""

        def failed(error: Exception) -> None:
            self._tell("This chat could not be written to the disk", error)
            done()

        self._thread.run(lambda: work(self._history), lambda _result: done(), failed)

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._thread.run(self._history.close)
        self._thread.close(timeout_s=5)

    def _on_opened(self, trouble: str) -> None:
        if trouble:
            self.unkept.emit(trouble)

    def _on_unread(self, error: Exception) -> None:
        self._tell("Your chats could not be read from the disk", error)

    def _tell(self, what: str, error: Exception) -> None:
        if not isinstance(error, (OSError, sqlite3.Error)):
            logger.error("work on the history failed", exc_info=error)
        self.trouble.emit(f"{what}: {why(error)}.")
