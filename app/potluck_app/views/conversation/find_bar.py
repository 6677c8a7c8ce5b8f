"""The bar that finds words in the shown conversation."""

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame

from potluck_app.chats.search import pattern_of
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.conversation.transcript import Transcript
from potluck_app.views.widgets.boxes import hbox
from potluck_app.views.widgets.controls import IconButton, announce, field, label


class FindBar(QFrame):
    """Finds the messages with these words, one after the other. Hidden until it is opened."""

    def __init__(self, theme: Theme, chat: Chat, transcript: Transcript) -> None:
        super().__init__()
        self.setObjectName("find-bar")
        self.setProperty("card", "true")
        self._chat, self._transcript = chat, transcript
        self._rows: list[int] = []  # of the messages that have the words
        self._place = 0
        self.text = field("field", "find-text", "Find in this chat")
        self.text.setPlaceholderText("Find in this chat")
        self.text.textChanged.connect(self._find)
        self.count = label("", "meta", name="find-count")
        up = IconButton(theme, "chevron-left", "Message before with these words", "find-previous")
        up.clicked.connect(lambda: self.step(-1))
        down = IconButton(theme, "chevron-right", "Next message with these words", "find-next")
        down.clicked.connect(lambda: self.step(1))
        close = IconButton(theme, "close", "Close the search", "find-close")
        close.clicked.connect(self.close_bar)
        self.last_stop = close  # of the Tab key
        margins = (8, 6, 6, 6)
        hbox((self.text, 1), self.count, up, down, close, parent=self, margins=margins, spacing=6)
        chat.shown_changed.connect(self.close_bar)
        self.hide()

    def open_bar(self) -> None:
        """Show the bar, with the words of before selected."""
        self.show()
        self.text.setFocus()
        self.text.selectAll()
        self._find()

    def close_bar(self) -> None:
        """Hide the bar and the marks."""
        if not self.isHidden():
            self.hide()
            self._transcript.unmark()

    def step(self, by: int) -> None:
        """Show the next message with the words, or the one before. After the last, the first."""
        if self._rows:
            self._place = (self._place + by) % len(self._rows)
            self._show()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            is_back = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
            self.step(-1 if is_back else 1)
        else:
            super().keyPressEvent(event)

    def _find(self) -> None:
        """Find the messages; the first one shown is in view or below it."""
        pattern = pattern_of(self.text.text())
        self._transcript.unmark()
        messages = self._chat.messages.messages if pattern is not None else ()
        self._rows = [row for row, m in enumerate(messages) if pattern and pattern.search(m.text)]
        seen = self._transcript.built()[0]
        self._place = next((n for n, row in enumerate(self._rows) if row >= seen), 0)
        self.count.setText("" if pattern is None else "Not found")
        if self._rows:
            self._show()

    def _show(self) -> None:
        self.count.setText(f"{self._place + 1} of {len(self._rows)}")
        announce(self, self.count.text())
        self._transcript.reveal(self._rows[self._place], self.text.text())
