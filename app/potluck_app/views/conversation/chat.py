"""The Chat page: conversations, the model in use, the transcript, the composer, the drawer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QDragEnterEvent, QDragLeaveEvent, QDropEvent, QResizeEvent
from PySide6.QtWidgets import (
    QGridLayout,
    QStackedWidget,
    QWidget,
)

from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.chats.values import Attachment
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.advice import Advice
from potluck_app.viewmodels.answering import answering, sees, why_blind
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.library import Library
from potluck_app.viewmodels.model_card import model_card
from potluck_app.views.conversation.advice import AdviceLine
from potluck_app.views.conversation.aloud import ReadingAloud
from potluck_app.views.conversation.chat_sidebar import WIDTH as LIST_WIDTH
from potluck_app.views.conversation.chat_sidebar import ChatSidebar
from potluck_app.views.conversation.composer import Composer, ComposerText, files_in
from potluck_app.views.conversation.find_bar import FindBar
from potluck_app.views.conversation.suggestion import Suggestion
from potluck_app.views.conversation.top_bar import NARROW, TopBar
from potluck_app.views.conversation.transcript import PAGE_WIDTH, Transcript
from potluck_app.views.conversation.waiting import WaitingLine
from potluck_app.views.widgets.boxes import WidthLimit, hbox, vbox
from potluck_app.views.widgets.card_button import CardButton
from potluck_app.views.widgets.controls import (
    announce,
    label,
    scrolling,
    set_property,
)
from potluck_app.views.widgets.overlay import SidePanel

if TYPE_CHECKING:
    from potluck_app.views.conversation.drawer import Drawer

# The guide can answer these: they are about what the person may want to do next.
EXAMPLES = (
    "What is Potluck?",
    "How do I add another computer?",
    "No computers are found. What can I do?",
    "Does anything leave my home network?",
)
_COLLAPSE_BELOW = 860  # pixels of the page; in a narrower one the list of chats lies over the chat
_OVER_BELOW = 640  # in a narrower one the options do so too


class ChatView(QWidget):
    """The Chat page."""

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        chat: Chat,
        library: Library,
        preferences: PreferencesFile,
        *,
        open_models: Callable[[], object],
    ) -> None:
        super().__init__()
        self.setObjectName("chat-page")
        self.setProperty("page", "true")
        self._theme, self._chat, self._library = theme, chat, library
        self._backend, self._preferences = backend, preferences
        self._said_state = ""
        self._is_narrow = False
        self._wants_list = True  # in a wide window; a narrow one shows it only on request
        self.sidebar = ChatSidebar(theme, chat)
        self.transcript = Transcript(theme, chat)
        self._waiting = WaitingLine(chat, self.transcript)
        ReadingAloud(chat, self.transcript)
        self.advice = Advice(backend, chat, self)
        self.find_bar = FindBar(theme, chat, self.transcript)
        self.composer = self._make_composer()
        self._pages = QStackedWidget()
        self._pages.addWidget(self._make_empty())
        self._pages.addWidget(self.transcript)

        self.top = TopBar(
            theme,
            library,
            open_models=open_models,
            on_list=self.toggle_list,
            on_options=self.toggle_options,
        )
        self.model, self.pill = self.top.model, self.top.pill
        self.show_list, self.options = self.top.show_list, self.top.options
        self._main = QWidget()
        self._main.installEventFilter(self)
        finding = hbox(WidthLimit(self.find_bar, PAGE_WIDTH), margins=(16, 0, 16, 0))
        vbox(self.top, finding, (self._pages, 1), self._make_bottom(), parent=self._main)
        self._row = hbox(self.sidebar, (self._main, 1), parent=self)
        self.transcript.tab_after = self.find_bar.last_stop
        self._list = SidePanel(
            self, self._row, self.sidebar, lambda: theme.px(LIST_WIDTH), self.toggle_list
        )
        self._options: SidePanel | None = None
        self.setAcceptDrops(True)

        self.sidebar.fold.clicked.connect(self.toggle_list)
        chat.busy_changed.connect(self.composer.set_busy)
        chat.models_wanted.connect(open_models)
        model = chat.messages
        model.modelReset.connect(self._on_messages)
        model.rowsInserted.connect(self._on_messages)
        model.rowsRemoved.connect(self._on_messages)
        self.advice.changed.connect(self._show_context)
        chat.settings_changed.connect(self._show_context)
        chat.shown_changed.connect(self._on_shown)
        theme.changed.connect(self._fit_main)
        theme.changed.connect(self._place)
        self._place()
        self.show_state(None)
        self._on_messages()

    @cached_property
    def drawer(self) -> Drawer:
        """The options of the shown conversation, made when they are first asked for."""
        from potluck_app.views.conversation.drawer import WIDTH, Drawer

        drawer = Drawer(self._theme, self._backend, self._chat)
        drawer.show_advanced(self._preferences.current.advanced)
        drawer.advanced_chosen.connect(lambda chosen: self._preferences.change(advanced=chosen))
        drawer.closed.connect(self.toggle_options)
        self._row.addWidget(drawer)
        width = partial(self._theme.px, WIDTH)
        self._options = SidePanel(self, self._row, drawer, width, self.toggle_options)
        return drawer

    def _make_composer(self) -> Composer:
        ComposerText.enter_sends = self._preferences.current.enter_sends
        composer = Composer(self._theme)
        composer.sent.connect(self._send)
        composer.stopped.connect(self._chat.stop)
        composer.changed.connect(self._chat.set_draft)
        composer.recalled.connect(self.edit_last)
        return composer

    def choose_enter(self, sends: bool) -> None:
        """Have the Enter key send messages, or begin new lines in them."""
        self._preferences.change(enter_sends=sends)
        ComposerText.enter_sends = sends
        self.composer.show_keys()

    def _make_empty(self) -> QWidget:
        page = QWidget()
        title = label("What would you like to know?", "title", wrap=True)
        self._empty_line = label("", "body2", wrap=True)
        for line in (title, self._empty_line):
            line.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self.suggestion = Suggestion(self._theme, self._library)
        self.examples = QWidget()
        self._grid = QGridLayout(self.examples)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(12)
        self._examples = [
            CardButton(text, f"example-{number}", lambda text=text: self._chat.send(text))
            for number, text in enumerate(EXAMPLES)
        ]
        inner = QWidget()
        vbox(
            title, self._empty_line, 16, self.examples, 8, self.suggestion, parent=inner, spacing=8
        )
        vbox((None, 2), WidthLimit(inner, 640), (None, 3), parent=page, margins=(24, 10, 24, 10))
        return scrolling(page, "New chat")

    def _make_bottom(self) -> QWidget:
        inner = QWidget()
        note = label("Runs only on your computers. Replies can be wrong.", "meta", wrap=True)
        note.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        vbox(
            AdviceLine(self._theme, self.advice),
            self.composer,
            note,
            parent=inner,
            spacing=6,
        )
        outer = QWidget()
        hbox(WidthLimit(inner, PAGE_WIDTH + 18), parent=outer, margins=(16, 4, 16, 10))
        return outer

    def focus_composer(self) -> None:
        if self.isVisible():
            self.composer.text.setFocus()

    def show_state(self, state: ClusterState | None, before: ClusterState | None = None) -> None:
        """Show which model answers, and its state.

        Args:
            state: None while there is no node.
            before: the last known state; its model will be loaded again.
        """
        card = None if state is None else model_card(state)
        name, is_guide = answering(state or before)
        where = "this computer" if is_guide else ""  # the guide alone is known to run here
        if state is not None and card is not None:
            where = wording.where_it_runs(state)
        if state is None or card is None:
            has_failed = self._backend.connection == "failed"
            starting = "Potluck is not running." if has_failed else "Starting Potluck…"
            self._show_pill(state, has_failed=has_failed)
            self._waiting.show_loading("" if state else starting)
            says = "answers on this computer" if is_guide else "is loaded with your first message"
            line = f"{name} {says}." if state or (before and not has_failed) else starting
            self._show_model(name, where, line)
        else:
            self.pill.show_state(card.pill, card.tone)
            self._waiting.show_loading(card.line, card.progress)
            self._show_model(name, where, f"{name} answers on {where}.")
        known = state or before
        self.composer.set_model(name, sees=sees(known) is not False, why=why_blind(known))
        self._say_state()
        self.examples.setVisible(is_guide and bool(state or before))
        self.suggestion.want(is_guide and state is not None)
        self._show_context()

    def _show_pill(self, state: ClusterState | None, *, has_failed: bool) -> None:
        """Show whether a message is answered now, while no model is loaded."""
        if state is not None:
            self.pill.show_state("Ready", "ok")
        elif has_failed:
            self.pill.show_state("Not running", "err")
        else:
            self.pill.show_state("Starting", "neutral")

    def _say_state(self) -> None:
        """Let a screen reader say the state of the model when it changes."""
        state, before = self.pill.text(), self._said_state
        self._said_state = state
        if before and state != before and self.isVisible():
            announce(self.top, f"{self.top.model_name}: {state}")

    def _show_model(self, name: str, where: str, line: str) -> None:
        self.top.show_model(name, where)
        self._empty_line.setText(line)

    def _on_messages(self) -> None:
        self._pages.setCurrentIndex(1 if self._chat.messages.rowCount() else 0)
        self._show_context()

    def _send(self, text: str, attachments: Sequence[Attachment]) -> None:
        self._chat.send(text, attachments)

    def edit_last(self) -> None:
        """Open the last message of the person for editing."""
        view = self.transcript.last_own()
        if view is not None and not self._chat.is_busy:
            view.open_editor()

    def _show_context(self) -> None:
        self.top.show_context(self.advice.used, self._chat.context())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = event.size().width() < self._theme.px(_COLLAPSE_BELOW)
        if is_narrow != self._is_narrow:
            self._is_narrow = is_narrow
            self._wants_list = not is_narrow
        self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._main and event.type() == QEvent.Type.Resize:
            self._fit_main()
        return super().eventFilter(watched, event)

    def _fit_main(self) -> None:
        """Show the examples in one column or two."""
        columns = 1 if self._main.width() < self._theme.px(NARROW) else 2
        for number, example in enumerate(self._examples):
            self._grid.addWidget(example, number // columns, number % columns)
        self._grid.setColumnStretch(0, 1)
        self._grid.setColumnStretch(1, columns - 1)  # equally wide

    # --- files that are dropped anywhere on the page

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if files_in(event.mimeData()):
            event.acceptProposedAction()
            set_property(self.composer, "composer", "focused")

    def dragLeaveEvent(self, event: QDragLeaveEvent) -> None:
        self._end_drag()

    def dropEvent(self, event: QDropEvent) -> None:
        self._end_drag()
        self.composer.attach(files_in(event.mimeData()))

    def _end_drag(self) -> None:
        has_focus = self.composer.text.hasFocus()
        set_property(self.composer, "composer", "focused" if has_focus else "true")

    # --- the list and the drawer

    def toggle_list(self) -> None:
        """Show or hide the list of chats."""
        self._wants_list = not self._wants_list
        self._place()
        if self._list.is_over:
            (self.sidebar.search if self._wants_list else self.composer).setFocus()

    def toggle_options(self) -> None:
        """Show or hide the drawer with the options of the shown conversation."""
        self.drawer.setVisible(self.drawer.isHidden())
        self._place()
        if not self.drawer.isHidden():
            self.drawer.system.setFocus()
        else:
            self.focus_composer()

    def close_panel(self) -> bool:
        """Close the search, or what lies over the chat. Returns whether there was something."""
        if not self.find_bar.isHidden():
            self.find_bar.close_bar()
            self.focus_composer()
        elif self._list.is_over and self._wants_list:
            self.toggle_list()
        elif self._options is not None and self._options.is_over and not self.drawer.isHidden():
            self.toggle_options()
        else:
            return False
        return True

    def _place(self) -> None:
        """Show the list and the drawer beside the chat, or where there is no room, over it."""
        self.sidebar.setVisible(self._wants_list)
        self.show_list.setVisible(self._is_narrow or not self._wants_list)
        self.top.fit()
        self._list.place(is_over=self._is_narrow)
        if self._options is not None:
            self._options.place(is_over=self.width() < self._theme.px(_OVER_BELOW))

    def _on_shown(self) -> None:
        if self._is_narrow:
            self._wants_list = False
            self._place()
        self.composer.show_draft(self._chat.draft)
        self.focus_composer()
