"""The tray icon of a computer that lends itself, or on which something goes on without its window.

A desktop may have no tray (GNOME), or its tray may appear some seconds after the login. So the
program waits for the tray, and hides a window only if there is one. Only `isSystemTrayAvailable` is
reliable.
"""

from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QSystemTrayIcon

from potluck.api.values.schema import ClusterState
from potluck_app import resources, wording
from potluck_app.backend import Backend
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.tray_icon import Mark, icon_for
from potluck_app.viewmodels import lending
from potluck_app.viewmodels.going_on import sentences
from potluck_app.viewmodels.model_card import ON_ITS_WAY
from potluck_app.views.pausing import offer_pauses
from potluck_app.views.widgets.words import Menu

_POLL_MS = 500
_PATIENCE_MS = 10_000  # the tray of a session may start later than its programs


class TrayWaiter(QObject):
    """Waits for the tray of the desktop.

    Signals:
        decided: whether there is a tray; sent once.
    """

    decided = Signal(bool)

    def __init__(
        self,
        parent: QObject,
        is_available: Callable[[], bool] = QSystemTrayIcon.isSystemTrayAvailable,
        patience_ms: int = _PATIENCE_MS,
        poll_ms: int = _POLL_MS,
    ) -> None:
        super().__init__(parent)
        self._is_available = is_available
        self._left_ms = patience_ms
        self._first = QTimer(self, singleShot=True, interval=0)
        self._first.timeout.connect(self._begin)
        self._poll = QTimer(self, interval=poll_ms)
        self._poll.timeout.connect(self._look)

    def start(self) -> None:
        self._first.start()

    def stop(self) -> None:
        """Stop waiting; `decided` is not sent."""
        self._first.stop()
        self._poll.stop()

    def _begin(self) -> None:
        if self._is_available():
            self.decided.emit(True)
        else:
            self._poll.start()

    def _look(self) -> None:
        self._left_ms -= self._poll.interval()
        if self._is_available() or self._left_ms <= 0:
            self._poll.stop()
            self.decided.emit(self._is_available())


class Tray(QObject):
    """The icon and its menu.

    Signals:
        open_requested: the person wants to see the window.
        settings_requested: the person wants to see its settings.
        quit_requested: the person wants to end the program, and what goes on in the background.
    """

    open_requested = Signal()
    settings_requested = Signal()
    quit_requested = Signal()

    def __init__(
        self, theme: Theme, backend: Backend, parent: QObject, *, lends: bool = True
    ) -> None:
        """`lends`: this computer helps others; otherwise its own window is hidden."""
        super().__init__(parent)
        self._theme, self._backend, self._lends = theme, backend, lends
        self.menu = Menu()
        self.menu.setAccessibleName("Potluck")
        self.status = self.menu.addAction("Starting…")
        self.status.setEnabled(False)
        self.more = self.menu.addAction("")  # what else goes on: one line would be very long
        self.more.setEnabled(False)
        self.more.setVisible(False)
        self.menu.addSeparator()
        self.open = self.menu.addAction("Open Potluck")
        self.open.triggered.connect(self.open_requested)
        self.pauses = Menu(self.menu)
        self.pauses.setTitle("Pause")
        self.menu.addMenu(self.pauses)
        offer_pauses(self.pauses, backend)
        self.resume = self.menu.addAction("Resume")
        self.resume.triggered.connect(lambda: backend.resume())
        self.free = self.menu.addAction("Free memory now")
        self.free.setToolTip(lending.FREE_MEMORY)
        self.free.triggered.connect(lambda: backend.free_memory())
        self.settings = self.menu.addAction("Settings")
        self.settings.triggered.connect(self.settings_requested)
        self.menu.addSeparator()
        self.quit = self.menu.addAction("Quit and stop sharing" if lends else "Quit")
        self.quit.triggered.connect(self.quit_requested)
        self.mark: Mark = "idle"
        self._icon = QSystemTrayIcon(icon_for(self.mark, theme.tokens), self)
        self._icon.setContextMenu(self.menu)
        self._icon.activated.connect(self._on_activated)
        theme.changed.connect(self._tint)
        backend.state_changed.connect(self._show_state)
        backend.connection_changed.connect(self._on_connection)  # a method ends with this object
        self._show_state(backend.live_state)

    def show(self) -> None:
        self._icon.show()

    def hide(self) -> None:
        self._icon.hide()

    def say(self, title: str, text: str) -> None:
        """Show a notification."""
        self._icon.showMessage(said(title), said(text), resources.app_icon())

    def _on_connection(self, _connection: str, _message: str) -> None:
        self._show_state(self._backend.live_state)

    def _show_state(self, state: ClusterState | None) -> None:
        mark = mark_of(state, is_lost=self._backend.connection in ("restarting", "failed"))
        if mark != self.mark:
            self.mark = mark
            self._tint()
        paused = state is not None and state.node.paused
        self.pauses.menuAction().setVisible(self._lends and not paused)
        self.resume.setVisible(self._lends and paused)
        self.free.setVisible(self._lends)
        self.pauses.setEnabled(state is not None)
        self.free.setEnabled(state is not None)
        if not self._lends:
            first, *rest = sentences(state) or ["Potluck is ready."]
            self.status.setText(wording.without_mnemonic(first))
            self.more.setText(wording.without_mnemonic(" ".join(rest)))
            self.more.setVisible(bool(rest))
            self._icon.setToolTip("Potluck")
            return
        if state is None:
            has_failed = self._backend.connection == "failed"
            self.status.setText(wording.no_node(has_failed=has_failed))
            self._icon.setToolTip("Potluck")
            return
        view = lending.lend_view(state)
        is_told = state.node.lent_to or state.node.withheld
        line = f"{view.title} · {view.short or view.text}" if is_told else view.title
        self.status.setText(wording.without_mnemonic(line))
        self._icon.setToolTip(said(f"Potluck: {view.title}"))

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason in (
            QSystemTrayIcon.ActivationReason.Trigger,
            QSystemTrayIcon.ActivationReason.DoubleClick,
        ):
            self.open_requested.emit()

    def _tint(self) -> None:
        self._icon.setIcon(icon_for(self.mark, self._theme.tokens))


def mark_of(state: ClusterState | None, *, is_lost: bool) -> Mark:
    """Return what the icon shows: an error before a pause, and a pause before work."""
    if is_lost:
        return "error"
    if state is None:
        return "idle"
    if state.node.paused or state.node.withheld:
        return "paused"
    model = state.model
    is_busy = state.node.lent_to or model.answering or model.state in ON_ITS_WAY
    return "busy" if is_busy else "idle"
