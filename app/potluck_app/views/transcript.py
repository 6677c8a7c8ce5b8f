"""The messages of the conversation, one widget each, in a page that scrolls.

The model holds the messages; this page follows it. Only the newest messages are built, older ones
on demand. The page follows its end only while the person is there.
"""

from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from potluck_app.history import Message
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.boxes import vbox
from potluck_app.views.controls import button, discard
from potluck_app.views.message import ReplyMessage, UserMessage, size_policy_row

PAGE_WIDTH = 720
_SIDE = 24
_BUILT_AT_ONCE = 50
_AT_END = 24  # pixels from the end that still count as the end


class Transcript(QScrollArea):
    """The page of messages."""

    def __init__(self, theme: Theme, chat: Chat) -> None:
        super().__init__()
        self.setObjectName("transcript")
        self.setAccessibleName("Conversation")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._theme, self._chat = theme, chat
        self._first = 0  # the row of the first message that has a widget
        self._views: list[UserMessage | ReplyMessage] = []
        self._stick = True
        self._progress: tuple[str, float | None] = ("", None)

        page = QWidget()
        self._column = vbox(parent=page, margins=(_SIDE, 18, _SIDE, 18), spacing=20)
        self.earlier = button("Show earlier messages", "transcript-earlier", self._build_earlier)
        self._column.addWidget(self.earlier, 0, Qt.AlignmentFlag.AlignHCenter)
        self._column.addStretch(1)
        self.setWidget(page)

        bar = self.verticalScrollBar()
        bar.valueChanged.connect(self._on_scrolled)
        bar.rangeChanged.connect(self._on_range)
        model = chat.messages
        model.modelReset.connect(self._rebuild)
        model.rowsInserted.connect(self._on_inserted)
        model.rowsRemoved.connect(self._on_removed)
        model.dataChanged.connect(self._on_changed)
        self._rebuild()

    def last_reply(self) -> ReplyMessage | None:
        """The newest reply that is shown."""
        for view in reversed(self._views):
            if isinstance(view, ReplyMessage):
                return view
        return None

    def show_progress(self, line: str, fraction: float | None) -> None:
        """Show what is happening to the model, for a reply that waits for it."""
        self._progress = (line, fraction)
        reply = self.last_reply()
        if reply is not None and reply.message.status == "streaming":
            reply.show_progress(line, fraction)

    def scroll_to_end(self) -> None:
        self._stick = True
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())

    def resizeEvent(self, event: QResizeEvent) -> None:
        width = event.size().width()
        side = max(_SIDE, (width - PAGE_WIDTH) // 2)
        self._column.setContentsMargins(side, 18, side, 18)
        for view in self._views:
            if isinstance(view, UserMessage):
                view.fit(width - 2 * side)
        super().resizeEvent(event)

    def _page_width(self) -> int:
        margins = self._column.contentsMargins()
        return self.viewport().width() - margins.left() - margins.right()

    def _rebuild(self) -> None:
        discard(*self._views)
        self._views.clear()
        messages = self._chat.messages.messages
        self._first = max(len(messages) - _BUILT_AT_ONCE, 0)
        for message in messages[self._first :]:
            self._add(message, len(self._views))
        self.earlier.setVisible(self._first > 0)
        self._mark_last()
        self.scroll_to_end()

    def _build_earlier(self) -> None:
        messages = self._chat.messages.messages
        first = max(self._first - _BUILT_AT_ONCE, 0)
        for place, message in enumerate(messages[first : self._first]):
            self._add(message, place)
        self._first = first
        self.earlier.setVisible(first > 0)

    def _add(self, message: Message, place: int) -> None:
        if message.role == "user":
            view: UserMessage | ReplyMessage = UserMessage(message)
            view.fit(self._page_width())
        else:
            view = ReplyMessage(self._theme, message, self._chat.regenerate)
        size_policy_row(view)
        self._views.insert(place, view)
        self._column.insertWidget(place + 1, view)

    def _on_inserted(self, _parent: QModelIndex, first: int, last: int) -> None:
        for row in range(first, last + 1):
            self._add(self._chat.messages.messages[row], row - self._first)
        self._mark_last()
        self.show_progress(*self._progress)
        self.scroll_to_end()

    def _on_removed(self, _parent: QModelIndex, first: int, last: int) -> None:
        for row in range(last, first - 1, -1):
            discard(self._views.pop(row - self._first))
        self._mark_last()

    def _on_changed(self, index: QModelIndex, _last: QModelIndex) -> None:
        view = self._views[index.row() - self._first]
        if isinstance(view, ReplyMessage):
            is_last = index.row() == self._chat.messages.rowCount() - 1
            view.show_message(self._chat.messages.messages[index.row()], is_last=is_last)

    def _mark_last(self) -> None:
        """Offer to write a reply again only for the last one."""
        last = len(self._views) - 1
        for place, view in enumerate(self._views):
            if isinstance(view, ReplyMessage):
                view.show_message(view.message, is_last=place == last)

    def _on_scrolled(self, value: int) -> None:
        self._stick = value >= self.verticalScrollBar().maximum() - _AT_END

    def _on_range(self, _minimum: int, maximum: int) -> None:
        if self._stick:
            self.verticalScrollBar().setValue(maximum)
