"""The Chat page: conversations, the model in use, the transcript, the composer."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QStackedWidget, QToolButton, QWidget

from potluck.api.schema import ClusterState
from potluck_app import wording
from potluck_app.theme import Theme
from potluck_app.viewmodels import cluster
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.chat_sidebar import ChatSidebar
from potluck_app.views.composer import Composer
from potluck_app.views.controls import IconButton, Meter, Pill, WidthLimit, announce, button, label
from potluck_app.views.transcript import PAGE_WIDTH, Transcript

# The guide can answer these: they are about what the person may want to do next.
EXAMPLES = (
    "What is Potluck?",
    "How do I add another computer?",
    "No computers are found. What can I do?",
    "Does anything leave my home network?",
)
_COLLAPSE_BELOW = 860  # pixels of the page; a narrower one hides the list of chats
_WARN, _FULL = 0.8, 0.95  # shares of the context


class ChatView(QWidget):
    """The Chat page."""

    def __init__(self, theme: Theme, chat: Chat, open_models: Callable[[], object]) -> None:
        super().__init__()
        self.setObjectName("chat-page")
        self.setProperty("page", "true")
        self._theme, self._chat = theme, chat
        self._context = 0
        self._is_narrow = False
        self._wants_list = True  # in a wide window; a narrow one shows it only on request
        self.sidebar = ChatSidebar(theme, chat)
        self.transcript = Transcript(theme, chat)
        self.composer = Composer(theme)
        self.composer.sent.connect(chat.send)
        self.composer.stopped.connect(chat.stop)
        self._pages = QStackedWidget()
        self._pages.addWidget(self._make_empty())
        self._pages.addWidget(self.transcript)

        main = vbox(self._make_top(open_models), (self._pages, 1), self._make_bottom())
        hbox(self.sidebar, (main, 1), parent=self)

        chat.busy_changed.connect(self.composer.set_busy)
        chat.busy_changed.connect(self._announce_reply)
        model = chat.messages
        model.modelReset.connect(self._on_messages)
        model.rowsInserted.connect(self._on_messages)
        model.rowsRemoved.connect(self._on_messages)
        model.dataChanged.connect(self._show_context)
        chat.shown_changed.connect(self._on_shown)
        self._place_list()
        self.show_state(None)
        self._on_messages()

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
        return hbox(
            self.show_list,
            self.model,
            self.pill,
            STRETCH,
            self._context_text,
            self._context_meter,
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
        vbox(self.composer, (note, 0, Qt.AlignmentFlag.AlignHCenter), parent=inner, spacing=6)
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

    def _announce_reply(self, is_busy: bool) -> None:
        last = self._chat.messages.last()
        if not is_busy and last is not None and last.role == "assistant":
            announce(self.transcript, last.error or last.text or "The reply was stopped.")

    def _show_context(self) -> None:
        used = 0
        for message in reversed(self._chat.messages.messages):
            if message.stats is not None:
                used = message.stats.prompt_tokens + message.stats.tokens
                break
        is_known = self._context > 0 and used > 0
        self._context_text.setVisible(is_known)
        self._context_meter.setVisible(is_known)
        if is_known:
            share = used / self._context
            self._context_text.setText(
                f"Context {wording.thousands(used)} / {wording.thousands(self._context)}"
            )
            tone = "err" if share >= _FULL else "warn" if share >= _WARN else "accent"
            self._context_meter.show_fraction(share, tone)
            tip = "Older messages will be left out." if share >= _FULL else ""
            self._context_text.setToolTip(tip)

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

    def _place_list(self) -> None:
        self.sidebar.setVisible(self._wants_list)
        self.show_list.setVisible(self._is_narrow or not self._wants_list)

    def _on_shown(self) -> None:
        if self._is_narrow:
            self._wants_list = False
            self._place_list()
        self.focus_composer()
