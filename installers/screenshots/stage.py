"""A window over a backend that sends nothing: what each scene is set on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from PySide6.QtCore import QCoreApplication, QEvent, QSize
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog, QScrollArea, QWidget
from screenshots import home
from screenshots.talk import conversations

from potluck.api.values.schema import ClusterState, Listener
from potluck.system.autostart import autostart
from potluck_app.application import Application
from potluck_app.backend import Backend, Reply
from potluck_app.chats.history import History
from potluck_app.chats.values import Conversation, Message, Settings
from potluck_app.http import Call, Endpoint, Http, Method
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.main_window import MainWindow
from potluck_app.views.options.start_box import StartBox
from potluck_app.views.widgets.focus import FocusRing
from potluck_app.views.worker import WorkerWindow

Shown = TypeVar("Shown", bound=QWidget)


def _qapp() -> QApplication:
    qapp = QApplication.instance()
    assert isinstance(qapp, QApplication)
    return qapp


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

    def fail(self, why: str) -> None:
        """Behave as if no node could be started."""
        self._set_connection("failed", why)

    def show_key(self, listener: Listener, key: str) -> None:
        """Behave as if this window had opened a listener with this key."""
        self._keys[listener.port] = key

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
        self._work, self._log = work, work / "node.log"
        self._log.write_text("INFO potluck.cluster.node: ready\n")
        self._shown: list[QWidget] = []
        self._application: Application | None = None
        self._focus = FocusRing(theme, _qapp(), self.backend)

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
            offer_start=self._offer_start,
            on_open_again=lambda: None,
            log=self._log,
        )
        return self._show(window)

    def _offer_start(self, box: StartBox) -> None:
        """Let the box change a file in the folder of this scene, as macOS has it."""
        box.offer(autostart("window", None, system="darwin", base=self._work), print)

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

    def worker(self, state: ClusterState | None) -> WorkerWindow:
        """Show the window of a computer that helps; without a state, its node is being started."""
        if state is not None:
            self.backend.say(state)
        window = WorkerWindow(
            self.theme,
            self.backend,
            on_close=lambda: True,
            on_stop=lambda: None,
            on_chat=lambda: None,
        )
        self._offer_start(window.start)
        return self._show(window)

    def application(self, mode: Literal["master", "worker"], state: ClusterState) -> Application:
        """Start the whole program on a desktop without a tray, in this role and state, without a node."""
        look = self.theme.choice, self.theme.text_size
        size = self.preferences.current
        PreferencesFile(self._work / "window.json").change(
            mode=mode, theme=look[0], text_size=look[1], width=size.width, height=size.height
        )
        application = Application(
            _qapp(),
            data_folder=self._work / "program",
            config_folder=self._work,
            find_or_start=no_node,
            is_tray_available=lambda: False,
        )
        self._application = application
        application.backend.start = lambda: None  # there is no node to find
        application.start(worker=mode == "worker")
        application.backend.state = state
        application.backend._set_connection("connected")
        application.backend.state_changed.emit(state)
        self.settle()
        return application

    def file(self, name: str) -> Path:
        """Return an invented file that is no text."""
        path = self._work / name
        path.write_bytes(bytes(64))
        return path

    def file_dialog(self) -> QFileDialog:
        """Return the dialog for files that is open, in an invented folder."""
        dialog = self.dialog()
        assert isinstance(dialog, QFileDialog)
        folder = self._work / "Documents"
        folder.mkdir()
        for name in ("Garden plan.md", "Letters.json", "Recipes.md"):
            (folder / name).write_text(name)
        (folder / "models").mkdir()
        dialog.setDirectory(str(folder))
        return dialog

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

    def reveal(self, page: QWidget, part: QWidget) -> None:
        """Scroll a page until a part of it is in the middle, as far as the page goes."""
        self.settle()
        area = page.findChildren(QScrollArea)[0]
        inner = area.widget()
        assert inner is not None
        middle = part.mapTo(inner, part.rect().center()).y()
        area.verticalScrollBar().setValue(middle - area.viewport().height() // 2)

    def strike(self) -> None:
        """Close everything."""
        if self._application is not None:
            self._application.close()
            self._application.deleteLater()
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
