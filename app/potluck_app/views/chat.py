"""The Chat page: conversations, the model in use, the transcript, the composer, the drawer."""

from collections.abc import Callable, Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QStackedWidget, QToolButton, QWidget

from potluck.api.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.chats.values import Attachment
from potluck_app.theme import Theme
from potluck_app.viewmodels import cluster
from potluck_app.viewmodels.advice import FULL, WARN, Advice
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.advice import AdviceLine
from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.chat_sidebar import ChatSidebar
from potluck_app.views.composer import Composer
from potluck_app.views.controls import IconButton, Meter, Pill, WidthLimit, announce, button, label
from potluck_app.views.drawer import Drawer
from potluck_app.views.transcript import PAGE_WIDTH, Transcript

# The guide can answer these: they are about what the person may want to do next.
EXAMPLES = (
    "What is Potluck?",
    "How do I add another computer?",
    "No computers are found. What can I do?",
    "Does anything leave my home network?",
)
_COLLAPSE_BELOW = 860  # pixels of the page; a narrower one hides the list of chats


class ChatView(QWidget):
    """The Chat page."""

    def __init__(
        self, theme: Theme, backend: Backend, chat: Chat, open_models: Callable[[], object]
    ) -> None:
        super().__init__()
        self.setObjectName("chat-page")
        self.setProperty("page", "true")
        self._theme, self._chat = theme, chat
        self._context = 0
        self._is_narrow = False
        self._wants_list = True  # in a wide window; a narrow one shows it only on request
        self.sidebar = ChatSidebar(theme, chat)
        self.transcript = Transcript(theme, chat)
        self.advice = Advice(backend, chat, self)
        self.drawer = Drawer(theme, backend, chat)
        self.composer = self._make_composer()
        self._pages = QStackedWidget()
        self._pages.addWidget(self._make_empty())
        self._pages.addWidget(self.transcript)

        main = vbox(self._make_top(open_models), (self._pages, 1), self._make_bottom())
        hbox(self.sidebar, (main, 1), self.drawer, parent=self)

        chat.busy_changed.connect(self.composer.set_busy)
        chat.replied.connect(self._announce_reply)
        model = chat.messages
        model.modelReset.connect(self._on_messages)
        model.rowsInserted.connect(self._on_messages)
        model.rowsRemoved.connect(self._on_messages)
        self.advice.changed.connect(self._show_context)
        chat.settings_changed.connect(self._show_context)
        chat.shown_changed.connect(self._on_shown)
        self._place_list()
        self.show_state(None)
        self._on_messages()

    def _make_composer(self) -> Composer:
        composer = Composer(self._theme)
        composer.sent.connect(self._send)
        composer.stopped.connect(self._chat.stop)
        composer.changed.connect(self._chat.set_draft)
        composer.recalled.connect(self.edit_last)
        return composer

    def _make_top(self, open_models: Callable[[], object]) -> QHBoxLayout:
        self.model = QToolButton()
        self.model.setObjectName("chat-model")
        self.model.setProperty("kind", "picker")
        self.model.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.model.setCursor(Qt.CursorShape.PointingHandCursor)
        self.model.clicked.connect(lambda: open_models())
        self.pill = Pill()
        self.pill.setObjectName("chat-pill")
        self._context_text = label("", "meta")
        self._context_meter = Meter(self._theme, "Context used")
        self._context_meter.setFixedWidth(80)
        self.show_list = IconButton(self._theme, "list", "Show or hide chats", "chat-list-toggle")
        self.show_list.setToolTip("Chats (Ctrl+B)")
        self.show_list.clicked.connect(self.toggle_list)
        self.options = IconButton(self._theme, "options", "Options of this chat", "chat-options")
        self.options.setToolTip("Options of this chat (Ctrl+I)")
        self.options.clicked.connect(self.toggle_options)
        return hbox(
            self.show_list,
            self.model,
            self.pill,
            STRETCH,
            self._context_text,
            self._context_meter,
            self.options,
            margins=(20, 10, 20, 6),
            spacing=12,
        )

    def _make_empty(self) -> QWidget:
        page = QWidget()
        title = label("What would you like to know?", "title")
        self._empty_line = label("", "body2")
        grid = QGridLayout()
        grid.setSpacing(12)
        for number, example in enumerate(EXAMPLES):
            prompt = button(
                example,
                f"example-{number}",
                lambda text=example: self._chat.send(text),
                kind="card",
            )
            grid.addWidget(prompt, number // 2, number % 2)
        inner = QWidget()
        vbox(
            (title, 0, Qt.AlignmentFlag.AlignHCenter),
            (self._empty_line, 0, Qt.AlignmentFlag.AlignHCenter),
            16,
            grid,
            parent=inner,
            spacing=8,
        )
        vbox((None, 2), WidthLimit(inner, 640), (None, 3), parent=page, margins=(24, 0, 24, 0))
        return page

    def _make_bottom(self) -> QWidget:
        inner = QWidget()
        note = label("Runs only on your computers. Replies can be wrong.", "meta")
        vbox(
            AdviceLine(self._theme, self.advice),
            self.composer,
            (note, 0, Qt.AlignmentFlag.AlignHCenter),
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
        card = None if state is None else cluster.model_card(state)
        if state is None or card is None:
            known = before.model.name if state is None and before is not None else None
            self._show_model(wording.model_name(known or "guide"), "this computer")
            self.pill.show_state("Ready" if state else "Starting", "ok" if state else "neutral")
            self._context = 0
            self.transcript.show_progress("" if state else "Starting Potluck…", None)
        else:
            self._show_model(card.name, wording.where_it_runs(state))
            self.pill.show_state(card.pill, card.tone)
            self._context = state.model.context
            self.transcript.show_progress(card.line, card.progress)
        self._show_context()

    def _show_model(self, name: str, where: str) -> None:
        text = f"{name}  ·  {where}"
        self.model.setText(wording.without_mnemonic(text))
        self.model.setAccessibleName(f"Model: {name}, on {where}. Choose another")
        self.composer.set_model_name(name)
        self._empty_line.setText(f"{name} answers on {where}.")

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

    def _announce_reply(self) -> None:
        last = self._chat.messages.last()
        if last is not None and last.role == "assistant":
            announce(self.transcript, last.error or last.text or "The reply was stopped.")

    def _show_context(self) -> None:
        used, context = self.advice.used, self._chat.context()
        share = used / context if context else 0.0
        of = f" / {wording.thousands(context)}" if context else ""
        self._context_text.setText(f"Context {wording.thousands(used)}{of}")
        tone = "err" if share >= FULL else "warn" if share >= WARN else "accent"
        self._context_meter.show_fraction(share, tone)
        self._context_text.setToolTip(wording.tip(_context_tip(share, context)))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = event.size().width() < _COLLAPSE_BELOW
        if is_narrow != self._is_narrow:
            self._is_narrow = is_narrow
            self._wants_list = not is_narrow
            self._place_list()

    def toggle_list(self) -> None:
        """Show or hide the list of chats."""
        self._wants_list = not self._wants_list
        self._place_list()

    def toggle_options(self) -> None:
        """Show or hide the drawer with the options of the shown conversation."""
        self.drawer.setVisible(self.drawer.isHidden())
        if not self.drawer.isHidden():
            self.drawer.system.setFocus()
        else:
            self.focus_composer()

    def _place_list(self) -> None:
        self.sidebar.setVisible(self._wants_list)
        self.show_list.setVisible(self._is_narrow or not self._wants_list)

    def _on_shown(self) -> None:
        if self._is_narrow:
            self._wants_list = False
            self._place_list()
        self.composer.show_draft(self._chat.draft)
        self.focus_composer()


def _context_tip(share: float, context: int) -> str:
    if not context:
        return "What the model reads at once. How much that can be is known when it is loaded."
    if share >= WARN:
        return "The model reads so many tokens at once. Older messages will be left out."
    return "The model reads so many tokens at once, with its reply."
