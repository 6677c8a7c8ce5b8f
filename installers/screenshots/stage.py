"""A window over a backend that sends nothing: what each scene is set on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QCoreApplication, QEvent, QSize
from PySide6.QtWidgets import QApplication, QDialog, QScrollArea, QWidget
from screenshots import home
from screenshots.talk import conversations

from potluck.api.schema import ClusterState
from potluck_app.backend import Backend, Reply
from potluck_app.chats.history import History
from potluck_app.chats.values import Conversation, Message, Settings
from potluck_app.http import Call, Endpoint, Http, Method
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow
from potluck_app.views.worker import WorkerWindow

Shown = TypeVar("Shown", bound=QWidget)


def no_node() -> Endpoint:
    """Raise an error, since pictures need no node."""
    raise OSError("there is no node here")


class ScriptedBackend(Backend):
    """A backend that shows the states it is given and sends nothing."""

    def __init__(self) -> None:
        super().__init__(no_node)
        self.replies: list[Reply] = []

    def start(self) -> None:
        """Do nothing: there is no node to find."""

    def chat(
        self,
        messages: Sequence[Message],
        settings: Settings = Settings(),  # noqa: B008 - a value
        *,
        goes_on: bool = False,
    ) -> Reply:
        self.replies.append(super().chat(messages, settings, goes_on=goes_on))
        return self.replies[-1]

    def say(self, state: ClusterState) -> None:
        self.state = state
        self._set_connection("connected")
        self.state_changed.emit(state)

    def lose(self) -> None:
        """Behave as if the node was killed."""
        self._set_connection("restarting")

    def _call(self, method: Method, path: str, body: object = None, answer: Any = None) -> Call:
        """Return a call that nobody answers."""
        return Call(self)

    def _submit(self, send: Callable[[Http], None]) -> None:
        """Do nothing: there is no node to send to."""


class Stage:
    """Everything that one scene needs: a backend, chats, and the windows over them.

    Args:
        theme: the look of everything.
        work: an empty folder for the chats and the preferences.
        size: of the main window, in logical pixels.
    """

    def __init__(self, theme: Theme, work: Path, size: QSize) -> None:
        self.theme = theme
        self.backend = ScriptedBackend()
        self._history = History(work / "chats.sqlite")
        self._history.open()
        self.known = conversations(self._history)
        self.chat = Chat(self.backend, self._history)
        self.preferences = PreferencesFile(work / "window.json")
        self.preferences.change(width=size.width(), height=size.height())
        self._log = work / "node.log"
        self._shown: list[QWidget] = []

    def main(self, *, is_first: bool = False) -> MainWindow:
        """Show the main window. `is_first`: with the page that asks for the role."""
        if not is_first:
            self.preferences.change(mode="master")
        window = MainWindow(
            self.theme,
            self.backend,
            self.chat,
            self.preferences,
            on_share=lambda: None,
            on_close=lambda: True,
            log=self._log,
        )
        return self._show(window)

    def talking(self, shown: Conversation | None = None) -> MainWindow:
        """Show the main window with a conversation, the newest if none is given, in a home of four."""
        window = self.main()
        self.backend.say(home.home())
        if shown is not None:
            self.known.insert(0, shown)
        self.chat.list.reset(self.known)
        self.chat._show(self.chat._opened(self.known[0]))
        self.settle()
        return window

    def worker(self, state: ClusterState) -> WorkerWindow:
        """Show the window of a computer that helps."""
        self.backend.say(state)
        window = WorkerWindow(
            self.theme,
            self.backend,
            on_close=lambda: True,
            on_stop=lambda: None,
            on_chat=lambda: None,
        )
        return self._show(window)

    def dialog(self) -> QDialog:
        """Return the dialog that is open."""
        shown = QApplication.activeModalWidget()
        assert isinstance(shown, QDialog)
        return shown

    def scroll(self, page: QWidget, share: float) -> None:
        """Scroll a page: 0 is its top, 1 its end."""
        self.settle()
        bar = page.findChildren(QScrollArea)[0].verticalScrollBar()
        bar.setValue(round(share * bar.maximum()))

    def strike(self) -> None:
        """Close everything."""
        self.chat.close()
        self._history.close()
        self.backend.close()
        for window in self._shown:
            window.hide()
            window.deleteLater()
        self.settle()

    def _show(self, window: Shown) -> Shown:
        window.show()
        self._shown.append(window)
        self.settle()
        return window

    def settle(self) -> None:
        """Process events until every layout has its final size."""
        for _ in range(6):
            QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
            QCoreApplication.processEvents()
