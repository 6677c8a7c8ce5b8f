"""The program's place in the tray: it is looked for, taken while no window shows, and given up again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from potluck.api.values.schema import ClusterState
from potluck_app.backend import Backend
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.going_on import News, offered, update_line

if TYPE_CHECKING:
    from potluck_app.tray import Tray, TrayWaiter

_READ_MS = 8000  # to read what the tray says before its icon goes


class TrayPlace(QObject):
    """Reads the module of the tray only when the program goes there: a window for chatting needs none.

    Args:
        is_available: whether the desktop has a tray now.
        preferences: where it is kept what was told.

    Signals:
        decided: whether the tray that was waited for is there.
        open_requested, settings_requested, quit_requested: the person has clicked that in the tray.
        was_read: there was time to read that a download is done.
    """

    decided = Signal(bool)
    open_requested = Signal()
    settings_requested = Signal()
    quit_requested = Signal()
    was_read = Signal()

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        is_available: Callable[[], bool],
        preferences: PreferencesFile,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._theme, self._backend, self._preferences = theme, backend, preferences
        self._waiter: TrayWaiter | None = None
        self.is_available = is_available
        self.tray: Tray | None = None
        self._news = News()
        self._reading = QTimer(self, singleShot=True, interval=_READ_MS)
        self._reading.timeout.connect(self.was_read)

    @property
    def is_waiting(self) -> bool:
        return self._waiter is not None

    def wait(self) -> None:
        """Wait for the tray, which may start later than this program; `decided` says whether it came."""
        from potluck_app.tray import TrayWaiter

        self._waiter = TrayWaiter(self, self.is_available)
        self._waiter.decided.connect(self._on_decided)
        self._waiter.start()

    def stop_waiting(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
            self._waiter = None

    def _on_decided(self, available: bool) -> None:
        self.stop_waiting()
        self.decided.emit(available)

    def take(self, *, lends: bool) -> None:
        """Show the icon, with the menu of a computer that lends or of one whose chat window is hidden."""
        from potluck_app.tray import Tray

        self.tray = Tray(self._theme, self._backend, self, lends=lends)
        self.tray.open_requested.connect(self.open_requested)
        self.tray.settings_requested.connect(self.settings_requested)
        self.tray.quit_requested.connect(self.quit_requested)
        self.tray.show()

    def leave(self) -> None:
        """Wait no more, and take the icon away."""
        self.stop_waiting()
        if self.tray is not None:
            self.tray.hide()
            self.tray.deleteLater()
            self.tray = None

    def say(self, title: str, text: str) -> None:
        """Say something beside the icon, if it is there."""
        if self.tray is not None:
            self.tray.say(title, text)

    def tell(self, state: ClusterState, *, chats: bool) -> None:
        """Say what is news. Call it with each state: what came before the icon was there is none to who chats."""
        losses, done = self._news.of_losses(state), self._news.of_downloads(state)
        if self.tray is None:
            return
        if (version := offered(state)) not in ("", self._preferences.current.told_update):
            self._preferences.change(told_update=version)  # each version is told of once
            self.say("Potluck", update_line(version, has_settings=chats))
        if not chats:
            return
        for news in filter(None, (losses, done)):
            self.say("Potluck", news)
        if done:
            self._reading.start()

    def is_read(self) -> bool:
        """Whether the person may be reading just now that a download is done."""
        return self._reading.isActive()
