"""The window that takes the place of this one when another version of Potluck was installed.

This process ends first: what was written is on the disk then, and the new one has the place of the only
window. What is shown is passed on in the preferences, which every version can read.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from potluck_app.preferences import PreferencesFile

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import subprocess

    from potluck_app.viewmodels.chat import Chat
    from potluck_app.views.main_window import MainWindow


class NextWindow:
    """Whether another window opens when this process has ended.

    Args:
        own_command: the words that start the program that is installed now; None: that is not known.
        preferences: where the next window reads what to show.
    """

    def __init__(
        self, own_command: Callable[[], Sequence[str]] | None, preferences: PreferencesFile
    ) -> None:
        self._own_command, self._preferences = own_command, preferences
        self._command: Sequence[str] = ()

    @property
    def is_possible(self) -> bool:
        return self._own_command is not None

    def prepare(self, main: MainWindow | None, chat: Chat) -> str:
        """Have it open at the end of this process; returns a sentence why it cannot, or nothing."""
        if chat.list.is_any_busy:
            return "A reply is being written. Open Potluck again when it is done."
        command = self._own_command() if self._own_command is not None else ()
        if not command or shutil.which(command[0]) is None:
            return "Potluck cannot open itself again. Close this window, and open Potluck as usual."
        if main is not None:
            self._preferences.change(back_to=main.place)
        self._command = command
        return ""

    def take_over(self, main: MainWindow) -> None:
        """Show what the window before showed, if this one has taken its place."""
        if (place := self._preferences.current.back_to) is not None:
            self._preferences.change(back_to=None)
            main.go_back_to(place)

    def open(self) -> subprocess.Popen[bytes] | None:
        """Start it, if it was prepared. Call it when this process has nothing left to do."""
        if self._command:
            import subprocess  # a window that opens needs none

            try:
                return subprocess.Popen(list(self._command), start_new_session=True)  # noqa: S603 - our own
            except OSError as error:
                logger.warning("no window of the newer version opens: %s", error)
        return None
