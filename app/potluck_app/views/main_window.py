"""The main window, for the computer on which the person chats: the rail, the pages, the banner."""

from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QSize, Qt, QTimer
from PySide6.QtGui import QCloseEvent, QShowEvent
from PySide6.QtWidgets import QMainWindow, QStackedWidget, QWidget

from potluck.api.schema import ClusterState, Notice
from potluck_app import resources
from potluck_app.backend import Backend, Connection
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import TEXT_SIZES, USUAL_TEXT, Choice, Theme
from potluck_app.viewmodels import cluster
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.library import Library
from potluck_app.views.banner import Banner
from potluck_app.views.boxes import hbox, vbox
from potluck_app.views.chat import ChatView
from potluck_app.views.cluster import ClusterView
from potluck_app.views.first_run import FirstRunView
from potluck_app.views.models import ModelsView
from potluck_app.views.rail import Rail, RailButton
from potluck_app.views.screens import ScreenFit
from potluck_app.views.settings import SettingsView
from potluck_app.views.shortcuts import ShortcutsDialog, bind

MINIMUM = QSize(480, 560)
_PROBLEM_MS = 20_000  # time to read why a command failed
_RANKS = {"info": 0, "warning": 1, "error": 2}


class MainWindow(QMainWindow):
    """The rail and the pages. Before the first choice, it shows the page that asks for the role."""

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        chat: Chat,
        preferences: PreferencesFile,
        *,
        on_share: Callable[[], object],
        on_close: Callable[[], bool],
        log: Path | None = None,
    ) -> None:
        super().__init__()
        self.setObjectName("main-window")
        self.setWindowTitle("Potluck")
        self.setWindowIcon(resources.app_icon())
        size = QSize(preferences.current.width, preferences.current.height)
        ScreenFit(self, size, MINIMUM)
        self._theme, self._backend, self._chat = theme, backend, chat
        self._preferences, self._on_close = preferences, on_close
        self._dismissed: set[int] = set()  # ids of notices that the person dismissed
        self._newest = 0  # highest id of a notice
        self._waits_for_first = False  # the first computer that joins leads to the chat
        self._problem = ""
        self._knows_unkept = False  # the person has read why chats are not kept
        self._problem_over = QTimer(self, singleShot=True, interval=_PROBLEM_MS)
        self._problem_over.timeout.connect(self._forget_problem)

        self.banner = Banner(theme)
        self.library = Library(backend, self)
        self.chat = ChatView(theme, backend, chat, self.library, self._get_models)
        self.cluster = ClusterView(theme, backend, lambda: self.go(self.models))
        self.models = ModelsView(theme, self.library)
        self.library.used.connect(lambda: self.go(self.chat))
        self.settings = SettingsView(
            theme,
            backend,
            on_theme=self._set_theme,
            on_text_size=self.change_text_size,
            on_language=lambda code: preferences.change(language=code),
            on_shortcuts=self.show_shortcuts,
            on_share=on_share,
            language=preferences.current.language,
            on_doctor=self.cluster.open_doctor,
            log=log,
        )
        self.first_run = FirstRunView(theme, on_master=self._start_master, on_worker=on_share)
        self.pages = QStackedWidget()
        self.rail_buttons: dict[QWidget, RailButton] = {}
        self._add_page(self.chat, "Chat")
        self._add_page(self.cluster, "Cluster")
        self._add_page(self.models, "Models")
        self._add_page(self.settings, "Settings")
        self._root = QStackedWidget()
        self._root.addWidget(self._make_shell())
        self._root.addWidget(self.first_run)
        self._root.setCurrentIndex(0 if preferences.current.mode else 1)
        self.setCentralWidget(self._root)
        self._make_shortcuts()

        backend.state_changed.connect(self._on_state)
        backend.connection_changed.connect(self._on_connection)
        backend.problem.connect(self._on_problem)
        chat.trouble.connect(self._on_problem)
        chat.unkept.connect(lambda _why: self._show_banner())
        self._on_state(backend.live_state)
        self.go(self.chat)

    def _add_page(self, page: QWidget, name: str) -> None:
        """Add a page and its button in the rail."""
        self.pages.addWidget(page)
        button = RailButton(self._theme, name)
        button.clicked.connect(lambda: self.go(page))
        self.rail_buttons[page] = button

    def _make_shell(self) -> QWidget:
        rail = Rail()
        for page, button in self.rail_buttons.items():
            if page is self.settings:
                rail.column.addStretch(1)
            rail.column.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        holder = QWidget()
        vbox(self.banner, parent=holder, margins=(12, 10, 12, 2))
        self._banner_holder = holder
        holder.hide()
        right = vbox(holder, (self.pages, 1))
        shell = QWidget()
        shell.setProperty("page", "true")
        hbox(rail, (right, 1), parent=shell)
        return shell

    def _make_shortcuts(self) -> None:
        actions: dict[str, Callable[[], object]] = {
            "chat": lambda: self.go(self.chat),
            "cluster": lambda: self.go(self.cluster),
            "models": lambda: self.go(self.models),
            "settings": lambda: self.go(self.settings),
            "look-again": self._look_again,
            "shortcuts": self.show_shortcuts,
            "new": self._new_chat,
            "search": self._search,
            "find": self._find,
            "list": self.chat.toggle_list,
            "options": self._options,
            "regenerate": self._regenerate,
            "copy": self._copy_reply,
            "copy-code": self._copy_code,
            "escape": self._escape,
            "larger": lambda: self.change_text_size(1),
            "smaller": lambda: self.change_text_size(-1),
            "usual": lambda: self.change_text_size(0),
        }
        bind(self, actions)

    def show_shortcuts(self) -> ShortcutsDialog:
        """Show the page of shortcuts."""
        dialog = ShortcutsDialog(self)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()
        return dialog

    def change_text_size(self, steps: int) -> None:
        """Make the text so many steps larger; 0 is back to the usual size."""
        at = bisect_left(TEXT_SIZES, self._theme.text_size) + steps
        size = TEXT_SIZES[min(max(at, 0), len(TEXT_SIZES) - 1)] if steps else USUAL_TEXT
        self._preferences.change(text_size=size)
        self._theme.set_text_size(size)

    def _find(self) -> None:
        self.go(self.chat)
        self.chat.find_bar.open_bar()

    def go(self, page: QWidget) -> None:
        """Show a page, once the role has been chosen."""
        if self._root.currentIndex() == 1 and self._preferences.current.mode is None:
            return  # the person has to choose the role first
        self._waits_for_first = False
        self.pages.setCurrentWidget(page)
        self.rail_buttons[page].setChecked(True)
        if page is self.chat:
            self.chat.focus_composer()
        else:
            page.setFocus()  # no button has the focus before a key is pressed

    def _get_models(self) -> None:
        self.go(self.models)
        self.models.open_tab(self.models.tab_hub)

    def _new_chat(self) -> None:
        self.go(self.chat)
        self._chat.new()

    def _regenerate(self) -> None:
        if self.chat.isVisible():  # on other pages the person would not see what is replaced
            self._chat.regenerate()

    def _look_again(self) -> None:
        if not self.cluster.isVisible():
            self.go(self.cluster)  # where they appear
        if self.cluster.isVisible():  # not before the role is chosen
            self.cluster.look_again()

    def _escape(self) -> None:
        """Close what lies over the chat; else stop the reply."""
        if not (self.chat.isVisible() and self.chat.close_panel()):
            self._chat.stop()

    def _options(self) -> None:
        self.go(self.chat)
        self.chat.toggle_options()

    def _copy_reply(self) -> None:
        reply = self.chat.transcript.last_reply()
        if self.chat.isVisible() and reply is not None:
            reply.copy.click()

    def _copy_code(self) -> None:
        code = self.chat.transcript.last_code()
        if self.chat.isVisible() and code is not None:
            code.copy.click()

    def _search(self) -> None:
        self.go(self.chat)
        if self.chat.sidebar.isHidden():
            self.chat.toggle_list()
        self.chat.sidebar.search.setFocus()
        self.chat.sidebar.search.selectAll()

    def _start_master(self) -> None:
        self._preferences.change(mode="master")
        self._root.setCurrentIndex(0)
        self.go(self.cluster)  # the page on which other computers appear
        self._waits_for_first = True

    def _set_theme(self, choice: Choice) -> None:
        self._preferences.change(theme=choice)
        self._theme.set(choice)

    # --- what the node says

    def _on_state(self, state: ClusterState | None) -> None:
        self.chat.show_state(state, self._backend.state)
        self.cluster.show_state(state)
        self.models.show_state(state)
        self.settings.show_state(state)
        self.first_run.show_state(state)
        if self._waits_for_first and state is not None and cluster.has_helper(state):
            self.go(self.chat)
        self._show_banner()

    def _on_connection(self, connection: Connection, _message: str) -> None:
        if connection == "connected":
            self._problem = ""
        self._on_state(self._backend.live_state)

    def _on_problem(self, message: str) -> None:
        self._problem = message
        self._problem_over.start()
        self._show_banner()

    def _show_banner(self) -> None:
        """Show one line at a time, the most severe first."""
        has_failed = self._backend.connection == "failed"
        why = self._backend.connection_message if has_failed else self._chat.why_unkept
        self.first_run.show_problem(why)
        notice = self._notice()
        if self._backend.connection == "restarting":
            self.banner.show_line(
                "Potluck stopped in the background. It starts again now, your chats are safe.",
                "warning",
            )
        elif has_failed:
            self.banner.show_line(self._backend.connection_message, "error")
        elif self._problem:
            self.banner.show_line(self._problem, "error", on_dismiss=self._forget_problem)
        elif self._chat.why_unkept and not self._knows_unkept:
            self.banner.show_line(self._chat.why_unkept, "error", on_dismiss=self._forget_unkept)
        elif notice is not None:
            self.banner.show_line(
                notice.text, notice.level, on_dismiss=lambda: self._dismiss(notice)
            )
        else:
            self._banner_holder.hide()
            return
        self._banner_holder.show()

    def _notice(self) -> Notice | None:
        state = self._backend.state
        notices = state.notices if state else ()
        newest = max((notice.id for notice in notices), default=0)
        if newest < self._newest:
            self._dismissed.clear()  # a restarted node counts from one again
        self._newest = newest
        fresh = (n for n in notices if n.id not in self._dismissed)
        return max(fresh, key=lambda n: (_RANKS[n.level], n.id), default=None)

    def _forget_problem(self) -> None:
        self._problem = ""
        self._show_banner()

    def _forget_unkept(self) -> None:
        self._knows_unkept = True
        self._show_banner()

    def _dismiss(self, notice: Notice) -> None:
        self._dismissed.add(notice.id)
        self._show_banner()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._root.currentWidget() is self.first_run:
            self.first_run.setFocus()  # no button has the focus before a key is pressed
        elif page := self.pages.currentWidget():
            self.go(page)

    def closeEvent(self, event: QCloseEvent) -> None:
        if not self.isMaximized():
            self._preferences.change(width=self.width(), height=self.height())
        event.setAccepted(self._on_close())
