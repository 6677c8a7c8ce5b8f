"""The program: one window per node, for chatting or for lending; how each of them starts and ends.

When the chat window closes, it stops to hold the node. The node then frees the memory of an unused
model at once; another window or program may still use the model. Where something goes on without it
(a port for other programs, a download), and for a computer that lends, the window hides in the tray,
or asks if the desktop has none; only Quit ends that. Its owner may have chosen that the chat window
always hides in the tray, or always quits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication, QSystemTrayIcon

from potluck.api.values.schema import ClusterState
from potluck_app import resources, wording
from potluck_app.backend import Backend
from potluck_app.chats.history import History
from potluck_app.http import Endpoint
from potluck_app.language import chosen as language_of
from potluck_app.language import use
from potluck_app.next_window import NextWindow
from potluck_app.node_connection import Connection
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.tray_place import TrayPlace
from potluck_app.viewmodels import lending
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.going_on import going_on
from potluck_app.views.main_window import MainWindow
from potluck_app.views.widgets.controls import discard
from potluck_app.views.widgets.dialogs import confirm
from potluck_app.views.widgets.focus import FocusRing

if TYPE_CHECKING:
    from potluck.system.autostart import Autostart
    from potluck_app.tray import Tray
    from potluck_app.views.options.start_box import StartBox
    from potluck_app.views.worker import WorkerWindow

logger = logging.getLogger(__name__)

_FAREWELL_MS = 3000  # the node may hang; the window must end in spite of that


class Application(QObject):
    """All objects of one running program.

    Signals:
        ending: the end has begun and cannot be stopped; another window may open.
        ended: nothing is left to do; the process may end.
    """

    ending = Signal()
    ended = Signal()

    def __init__(
        self,
        qapp: QApplication,
        *,
        data_folder: Path,
        config_folder: Path,
        find_or_start: Callable[[], Endpoint],
        autostart: Callable[[], Autostart] | None = None,
        log: Path | None = None,
        own_command: Callable[[], Sequence[str]] | None = None,
        is_tray_available: Callable[[], bool] = QSystemTrayIcon.isSystemTrayAvailable,
    ) -> None:
        super().__init__(qapp)
        self._autostart = autostart
        resources.introduce(qapp)
        self.preferences = PreferencesFile(config_folder / "window.json")
        self.next_window = NextWindow(own_command, self.preferences)
        chosen = self.preferences.current
        use(qapp, language_of(chosen.language))
        self.theme = Theme(qapp, chosen.theme, chosen.text_size)
        FocusRing(self.theme, qapp, self)
        self.backend = Backend(find_or_start, parent=self)
        history = History(data_folder / "chats.sqlite", former=data_folder / "conversations")
        self.chat = Chat(self.backend, history, self)
        self.main: MainWindow | None = None
        self.worker: WorkerWindow | None = None
        self._log = log
        self._place = TrayPlace(self.theme, self.backend, is_tray_available, self.preferences, self)
        self._place.decided.connect(self._on_tray)
        self._place.open_requested.connect(self.show)
        self._place.settings_requested.connect(self._show_settings)
        self._place.quit_requested.connect(self._quit_from_tray)
        self._place.was_read.connect(self._end_if_done)
        self._is_ending = self._has_ended = self._has_lost_node = False
        self._announced: set[str] = set()
        self._lends_when_connected = False
        self._waits_in_tray = False  # it started with the computer, and nobody has opened it yet
        self.backend.state_changed.connect(self._on_state)
        self.backend.connection_changed.connect(self._on_connection)

    @property
    def tray(self) -> Tray | None:
        """The icon in the tray, while it is there."""
        return self._place.tray

    def start(self, *, worker: bool = False, hidden: bool = False) -> None:
        """Show the window for the role of this computer.

        Args:
            worker: lend this computer, whatever was chosen before.
            hidden: start in the tray, if the desktop has one.
        """
        if worker:
            self.preferences.change(mode="worker")
        self.chat.start()
        if self.preferences.current.mode == "worker":
            self._lends_when_connected = True  # unless it became the main computer meanwhile
            self._lend(hidden=hidden)
        elif hidden:
            self._waits_in_tray = True
            self._place.wait()
            return  # the node starts when somebody opens the window
        else:
            self._open_main()
        self.backend.start()

    def show(self) -> None:
        """Bring the window to the front."""
        if self._waits_in_tray:
            self._waits_in_tray = False
            self._place.stop_waiting()
            self._open_main()
            self.backend.start()
        window = self.main or self.worker
        if window is not None:
            if window is self.main:
                self.backend.set_holder("window")
                self._place.leave()
            window.show()
            window.raise_()
            window.activateWindow()

    def close(self) -> None:
        """Close everything here without a call to the node."""
        self.chat.close()
        self.backend.close()
        self._place.leave()
        for window in (self.main, self.worker):
            if window is not None:
                window.hide()

    # --- chatting here

    def _open_main(self) -> None:
        self.main = MainWindow(
            self.theme,
            self.backend,
            self.chat,
            self.preferences,
            on_share=self.share,
            on_close=self._on_main_close,
            offer_start=self._offer_start,
            on_open_again=self._open_again if self.next_window.is_possible else None,
            log=self._log,
        )
        self.main.show()
        self.next_window.take_over(self.main)

    def _offer_start(self, box: StartBox) -> None:
        if self._autostart is not None:
            box.offer(self._autostart(), self.backend.problem.emit)

    def chat_here(self) -> None:
        """Leave the worker window and return to the chat window."""
        self.preferences.change(mode="master")
        self.backend.set_role(worker=False).then(failed=self.backend.report)
        self.backend.set_holder("window")
        self._drop_worker()
        self._open_main()

    def _open_again(self) -> None:
        """End, and have the program that is installed now open in place of this window."""
        if why := self.next_window.prepare(self.main, self.chat):
            self.backend.problem.emit(why)
        else:
            self.leave()

    def leave(self) -> None:
        """End after the chat window was closed."""
        if not self._is_ending:
            self._end()

    def _on_main_close(self) -> bool:
        """Return whether the chat window may close. If something goes on without it, that is said."""
        state, closing = self.backend.live_state, self.preferences.current.closing
        rest = going_on(state)
        if closing == "quit" and not self._is_ending:
            self._quit_all()
            return True
        if closing == "tray" and not self._is_ending and self._place.is_available():
            self._place.take(
                lends=False
            )  # it still holds the node: the model stays, and replies go on
            return True
        if not rest or self._is_ending:
            self.leave()
            return True
        assert state is not None
        assert self.main is not None
        if self._place.is_available():
            # Only a port needs the model: a download goes on with a node that nobody holds.
            self.backend.set_holder("window" if state.listeners else "tray")
            self._place.take(lends=False)
            self._place.say("Potluck goes on", f"{rest} Quit it from here.")
            return True
        confirm(
            self.main,
            title="Quit Potluck?",
            text=f"{rest} This desktop has no tray where that could go on. Keep the window, or quit.",
            action="Quit",
            keep="Keep the window",
            on_confirmed=self._quit_all,
        )
        return False

    def _quit_all(self) -> None:
        """End the node, and then this program."""
        self._end_after(lambda: self._end_node(None))

    # --- lending

    def share(self) -> None:
        """Leave the chat window and lend this computer."""
        self.preferences.change(mode="worker")
        self.chat.stop_all()
        self._clear_own_use()
        if self.main is not None:
            discard(self.main)
            self.main = None
        self.backend.set_role(worker=True).then(failed=self.backend.report)
        self._lend(hidden=False)

    def _clear_own_use(self) -> None:
        """Unload the model and close the listeners: a computer with its own model lends nothing."""
        state = self.backend.live_state
        if state is not None:
            for listener in state.listeners:  # a request to a listener would load the model again
                self.backend.close_listener(listener.port).then(failed=self.backend.report)
        if state is not None and state.model.state != "none":
            self.backend.unload_model().then(failed=self.backend.report)

    def _lend(self, *, hidden: bool) -> None:
        from potluck_app.views.worker import WorkerWindow  # a window for chatting needs none

        self.backend.set_holder("worker")
        self.worker = WorkerWindow(
            self.theme,
            self.backend,
            on_close=self._on_worker_close,
            on_stop=self.stop_lending,
            on_chat=self.chat_here,
            on_open_again=self._open_again if self.next_window.is_possible else None,
        )
        self._offer_start(self.worker.start)
        self.worker.setWindowIcon(resources.app_icon())
        if not hidden:
            self.worker.show()
        self._place.wait()

    def _on_tray(self, available: bool) -> None:
        if available:
            self._place.take(lends=self.worker is not None)
        elif self.worker is not None:
            self.worker.show()
        else:
            self.show()

    def _quit_from_tray(self) -> None:
        if self.worker is not None:
            self.stop_lending()
        else:
            self._quit_all()

    def _show_settings(self) -> None:
        """Show the settings of this computer; those of a helper are in its window."""
        self.show()
        if self.main is not None:
            self.main.go(self.main.settings)

    def _on_worker_close(self) -> bool:
        """Return whether the worker window may close: it hides only if there is a tray."""
        if self._is_ending:
            return True
        if self._place.is_waiting and self._place.is_available():
            self._place.stop_waiting()
            self._on_tray(True)
        if self.tray is not None and self._place.is_available():
            self._place.say("Potluck keeps helping", "Quit it from here to stop sharing.")
            return True
        assert self.worker is not None
        confirm(
            self.worker,
            title="Stop sharing this computer?",
            text="This desktop has no tray where Potluck could go on without its window. If you stop,"
            " this computer stays paired and keeps what it has stored. It helps again when you open"
            " Potluck.",
            action="Stop sharing",
            keep="Keep the window",
            on_confirmed=self.stop_lending,
        )
        return False

    def stop_lending(self) -> None:
        """Stop the lending and end."""
        self._end_after(
            lambda: self.backend.set_role(worker=False).then(self._end_node, self._end_node)
        )

    def _end_node(self, _answer: object) -> None:
        self.backend.shut_down().then(lambda _: self._end(), lambda _: self._end())

    def _drop_worker(self) -> None:
        self._place.leave()
        if self.worker is not None:
            discard(self.worker)
            self.worker = None

    def _on_connection(self, connection: Connection, _message: str) -> None:
        """Lend again after the node was restarted, since a new node may not know the role."""
        if connection == "restarting":
            self._has_lost_node = True
        elif connection == "connected" and self._has_lost_node:
            self._has_lost_node = False
            state = self.backend.state
            is_main = state is not None and state.node.handed_over == "main"
            if self.worker is not None and not self._is_ending and not is_main:
                self.backend.set_role(worker=True).then(failed=self.backend.report)

    def _on_state(self, state: ClusterState) -> None:
        """End when nothing goes on any more; show the hidden window for who asks to use this computer."""
        self._change_role(state)
        self._place.tell(state, chats=self.main is not None)
        if self._is_hidden_for_nothing(state) and not self._place.is_read():
            self.leave()
            return
        for request in lending.worker_requests(state) if self.worker is not None else ():
            if request.id not in self._announced:
                self._announced.add(request.id)
                self.show()
                code = wording.spaced_code(request.code or "")
                text = f"{request.name} wants to use this computer. Code {code}"
                self._place.say("Potluck", text)

    def _change_role(self, state: ClusterState) -> None:
        """Show the other window when another computer became the main one, or this one did."""
        became, lends = state.node.handed_over, self._lends_when_connected
        self._lends_when_connected = False
        if self._is_ending:
            return
        if became == "main" and self.worker is not None:
            self.chat_here()
        elif became == "helper" and self.main is not None:
            self._place.leave()
            self.share()
        elif lends:
            self.backend.set_role(worker=True).then(failed=self.backend.report)

    def _is_hidden_for_nothing(self, state: ClusterState | None) -> bool:
        """Whether the chat window is hidden in the tray while it is needed, and nothing goes on any more."""
        is_hidden = self.main is not None and self.tray is not None
        return is_hidden and self.preferences.current.closing != "tray" and not going_on(state)

    def _end_if_done(self) -> None:
        if self._is_hidden_for_nothing(self.backend.live_state):
            self.leave()

    # --- the end

    def quit(self) -> None:
        """End as if the person had closed the window or chosen Quit in the tray."""
        if self.worker is not None:
            self.stop_lending()
        else:
            self.leave()

    def _end_after(self, farewell: Callable[[], object]) -> None:
        """End after what is to be said to the node, with a deadline for its answers."""
        if self._is_ending:
            return
        if self.backend.connection != "connected":
            self._end()
            return
        self._begin_end()
        farewell()
        QTimer.singleShot(_FAREWELL_MS, self, self._end)

    def _begin_end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self.ending.emit()

    def _end(self) -> None:
        if not self._has_ended:
            self._begin_end()
            self._has_ended = True
            self.close()
            self.ended.emit()
