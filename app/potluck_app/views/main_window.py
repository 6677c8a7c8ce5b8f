"""The main window, for the computer on which the person chats: the rail, the pages, the banner.

A page is made, and its module read, when it is first opened: the window opens with the chat alone,
and at the first start with the question for the role alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QCloseEvent, QShowEvent
from PySide6.QtWidgets import QMainWindow, QStackedWidget, QWidget

from potluck.api.values.schema import ClusterState
from potluck_app import resources
from potluck_app.backend import Backend
from potluck_app.node_connection import Connection
from potluck_app.preferences import Place, PreferencesFile
from potluck_app.theme import TEXT_SIZES, USUAL_TEXT, Choice, Theme
from potluck_app.viewmodels import cluster
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.home.engine import EngineCard
from potluck_app.views.options.shortcuts import ShortcutsDialog, bind
from potluck_app.views.rail import Rail, RailButton
from potluck_app.views.widgets.banner import NewsBanner
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.screens import ScreenFit

if TYPE_CHECKING:
    from potluck_app.viewmodels.library import Library
    from potluck_app.views.conversation.chat import ChatView
    from potluck_app.views.first_run import FirstRunView
    from potluck_app.views.home.cluster import ClusterView
    from potluck_app.views.library.models import ModelsView
    from potluck_app.views.options.settings import SettingsView
    from potluck_app.views.options.start_box import StartBox

MINIMUM = QSize(480, 560)
_ABOVE = (12, 10, 12, 2)  # pixels around what stands above every page


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
        offer_start: Callable[[StartBox], object] = lambda _box: None,
        on_open_again: Callable[[], object] | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__()
        self.setObjectName("main-window")
        self.setWindowTitle("Potluck")
        self.setWindowIcon(resources.app_icon())
        size = QSize(preferences.current.width, preferences.current.height)
        ScreenFit(self, size, MINIMUM, theme)
        self._theme, self._backend, self._chat = theme, backend, chat
        self._preferences, self._on_share, self._on_close = preferences, on_share, on_close
        self._offer_start, self._log, self._on_open_again = offer_start, log, on_open_again
        self._waits_for_first = False  # the first computer that joins leads to the chat

        restarting = "Potluck stopped in the background. It starts again now, your chats are safe."
        self.banner = NewsBanner(theme, backend, restarting, preferences)
        self.pages = QStackedWidget()
        self._names: dict[QWidget, str] = {}  # of the pages that are made
        self._shows_state: list[Callable[[ClusterState | None], object]] = []
        self.rail_buttons: dict[str, RailButton] = {}
        self._add_button("chat", "Chat", lambda: self.chat)
        self._add_button("cluster", "Cluster", lambda: self.cluster)
        self._add_button("models", "Models", lambda: self.models)
        self._add_button("settings", "Settings", lambda: self.settings)
        self._root = QStackedWidget()
        self._root.addWidget(self._make_shell())
        if preferences.current.mode is None:
            self._root.setCurrentWidget(self.first_run)
        self.setCentralWidget(self._root)
        self._make_shortcuts()

        backend.state_changed.connect(self._on_state)
        backend.connection_changed.connect(self._on_connection)
        chat.trouble.connect(self.banner.show_problem)
        chat.unkept.connect(self.banner.show_trouble)
        self.banner.refreshed.connect(self._on_banner)
        self._on_state(backend.live_state)
        self.banner.show_trouble(chat.why_unkept)
        self.banner.follow()
        if preferences.current.mode is not None:
            self.go(self.chat)

    # --- the pages

    @cached_property
    def library(self) -> Library:
        from potluck_app.viewmodels.library import Library

        library = Library(self._backend, self)
        library.used.connect(lambda: self.go(self.chat))
        return library

    @cached_property
    def chat(self) -> ChatView:
        from potluck_app.views.conversation.chat import ChatView

        page = ChatView(
            self._theme,
            self._backend,
            self._chat,
            self.library,
            self._preferences,
            open_models=self._get_models,
        )
        self._add("chat", page)
        self._follow(lambda state: page.show_state(state, self._backend.state))
        return page

    @cached_property
    def cluster(self) -> ClusterView:
        from potluck_app.views.home.cluster import ClusterView

        page = ClusterView(self._theme, self._backend, lambda: self.go(self.models))
        self._add("cluster", page)
        self._follow(page.show_state)
        return page

    @cached_property
    def models(self) -> ModelsView:
        from potluck_app.views.library.models import ModelsView

        page = ModelsView(self._theme, self.library)
        self._add("models", page)
        self._follow(page.show_state)
        return page

    @cached_property
    def settings(self) -> SettingsView:
        from potluck_app.views.options.settings import SettingsView

        page = SettingsView(
            self._theme,
            self._backend,
            on_theme=self._set_theme,
            on_text_size=self.change_text_size,
            on_enter=lambda sends: self.chat.choose_enter(sends),
            on_shortcuts=self.show_shortcuts,
            on_share=self._on_share,
            preferences=self._preferences,
            on_doctor=lambda: self.cluster.open_doctor(),
            on_open_again=self._on_open_again,
            log=self._log,
        )
        page.update_card.seen.connect(self.banner.read_of)
        self._offer_start(page.start)
        self._add("settings", page)
        self._follow(page.show_state)
        return page

    @cached_property
    def first_run(self) -> FirstRunView:
        from potluck_app.views.first_run import FirstRunView

        page = FirstRunView(
            self._theme, self._backend, on_master=self.start_master, on_worker=self._on_share
        )
        self._root.addWidget(page)
        self._follow(page.show_state)
        return page

    def _add(self, name: str, page: QWidget) -> None:
        self._names[page] = name
        self.pages.addWidget(page)

    def _follow(self, show: Callable[[ClusterState | None], object]) -> None:
        """Let a page show the state of the home, now and from now on."""
        show(self._backend.live_state)
        self._shows_state.append(show)

    def _add_button(self, name: str, text: str, page: Callable[[], QWidget]) -> None:
        button = self.rail_buttons[name] = RailButton(self._theme, text)
        button.clicked.connect(lambda: self.go(page()))

    def _make_shell(self) -> QWidget:
        rail = Rail()
        for name, button in self.rail_buttons.items():
            if name == "settings":
                rail.column.addStretch(1)
            rail.column.addWidget(button, 0, Qt.AlignmentFlag.AlignHCenter)
        holder = QWidget()
        vbox(self.banner, parent=holder, margins=_ABOVE)
        self._banner_holder = holder
        holder.hide()
        right = vbox(holder, EngineCard(self._theme, self._backend, _ABOVE), (self.pages, 1))
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
            "list": lambda: self.chat.toggle_list(),
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
        if self._asks_for_role():
            return  # the person has to choose the role first
        self._waits_for_first = False
        self.pages.setCurrentWidget(page)
        self.rail_buttons[self._names[page]].setChecked(True)
        if page is self.chat:
            self.chat.focus_composer()
        else:
            page.setFocus()  # no button has the focus before a key is pressed

    @property
    def place(self) -> Place:
        """What is shown, for a window that takes the place of this one."""
        page = self.pages.currentWidget()
        name = self._names[page] if page is not None else ""
        return Place(page=name, chat=self._chat.shown_id or "")

    def go_back_to(self, place: Place) -> None:
        """Show what another window has shown."""
        if place.chat:
            self._chat.open(place.chat)
        if place.page in self.rail_buttons:
            self.rail_buttons[place.page].click()

    def _asks_for_role(self) -> bool:
        return self._root.currentIndex() == 1 and self._preferences.current.mode is None

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

    def start_master(self) -> None:
        self._preferences.change(mode="master")
        self._root.setCurrentIndex(0)
        self.go(self.cluster)  # the page on which other computers appear
        self._waits_for_first = True

    def _set_theme(self, choice: Choice) -> None:
        self._preferences.change(theme=choice)
        self._theme.set(choice)

    # --- what the node says

    def _on_state(self, state: ClusterState | None) -> None:
        for show in self._shows_state:
            show(state)
        if state is not None and state.pairings:
            _ = self.cluster  # its card says the code aloud, also while another page is seen
        if self._waits_for_first and state is not None and cluster.has_helper(state):
            self.go(self.chat)

    def _on_connection(self, _connection: Connection, _message: str) -> None:
        self._on_state(self._backend.live_state)

    def _on_banner(self) -> None:
        """Give the line its room, and say what lasts on the first page, too."""
        has_failed = self._backend.connection == "failed"
        why = self._backend.connection_message if has_failed else self._chat.why_unkept
        if "first_run" in self.__dict__:
            self.first_run.show_problem(why)
        self._banner_holder.setHidden(self.banner.isHidden())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._asks_for_role():
            self.first_run.setFocus()  # no button has the focus before a key is pressed
        elif page := self.pages.currentWidget():
            self.go(page)

    def closeEvent(self, event: QCloseEvent) -> None:
        if not self.isMaximized():
            self._preferences.change(width=self.width(), height=self.height())
        event.setAccepted(self._on_close())
