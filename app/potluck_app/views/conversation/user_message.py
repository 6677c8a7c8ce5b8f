"""A message of the person: in a bubble, with its files and versions, and a field to edit it."""

import re
from functools import cached_property

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from potluck_app.chats.values import Message
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.conversation.editor import Editor
from potluck_app.views.conversation.versions import VersionSwitch
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.chips import Chips
from potluck_app.views.widgets.controls import CopyButton, IconButton, button
from potluck_app.views.widgets.plain import PlainView

_BUBBLE_SHARE = 0.8  # largest share of the transcript's width
_NARROWEST = 40  # pixels of text; a narrower page cuts it
_GAP = 6  # pixels between the parts of the row
_PADDING = 14
_FOLDED = 3000  # characters; a longer text is folded, since a label of a whole book takes seconds


class UserMessage(QWidget):
    """The message of the person, exactly as it was written."""

    def __init__(self, theme: Theme, message: Message, chat: Chat, width: int = 0) -> None:
        super().__init__()
        self._theme, self._chat = theme, chat
        self._message = message
        self._is_whole = False
        self._width = width
        self.text = PlainView(theme, "Your message")
        self.copy = CopyButton(
            theme, "Copy your message", "message-copy", lambda: self._message.text, shown=""
        )
        self.edit = IconButton(theme, "edit", "Edit and send again", "message-edit")
        self.edit.clicked.connect(self.open_editor)
        self._bubble = QFrame()
        self._bubble.setProperty("bubble", "true")
        self._inside = vbox(
            self.text, parent=self._bubble, margins=(_PADDING, 9, _PADDING, 10), spacing=8
        )
        self._row = QWidget()
        top = Qt.AlignmentFlag.AlignTop
        self._parts = hbox(
            STRETCH,
            (self.copy, 0, top),
            (self.edit, 0, top),
            (self._bubble, 0, top),
            parent=self._row,
            spacing=_GAP,
        )
        self._editor: Editor | None = None
        self._column = vbox(self._row, parent=self)
        self.show_message(message)

    @cached_property
    def more(self) -> QPushButton:
        more = button("Show the whole message", "message-more", self._unfold)
        self._inside.insertWidget(1, more)
        return more

    @cached_property
    def chips(self) -> Chips:
        chips = Chips(self._theme)
        self._inside.addWidget(chips)
        return chips

    @cached_property
    def versions(self) -> VersionSwitch:
        view = VersionSwitch(self._theme, lambda step: self._chat.choose(self._message.id, step))
        self._parts.insertWidget(1, view, 0, Qt.AlignmentFlag.AlignTop)
        return view

    @property
    def message(self) -> Message:
        return self._message

    @property
    def is_plain(self) -> bool:
        """Whether it shows text alone, so that it can show any other message as well."""
        has_more = not {"more", "chips", "versions"}.isdisjoint(self.__dict__)
        return self._editor is None and not has_more

    def part_count(self) -> int:
        """How many parts the message has, which changes with what the Tab key reaches."""
        return self._inside.count() + self._parts.count() + self._column.count()

    def show_message(self, message: Message, versions: tuple[int, int] = (0, 1)) -> None:
        """Show a message, and which of its versions it is."""
        if message.id != self._message.id or not self._is_whole:
            self._is_whole = len(message.text) <= _FOLDED
        self._message = message
        self.text.show_text(message.text if self._is_whole else message.text[:_FOLDED] + "…")
        self.text.setVisible(bool(message.text))
        self.copy.setVisible(bool(message.text))  # else it is a picture alone
        if not self._is_whole or "more" in self.__dict__:
            self.more.setVisible(not self._is_whole)
        if message.attachments:
            self.chips.show_files(message.attachments)
        if versions[1] > 1 or "versions" in self.__dict__:
            self.versions.show_versions(*versions)

    def fit(self, width: int) -> None:
        """Wrap the text if it is wider than a bubble may be on a page of this width."""
        self._width = width
        beside = sum(each.sizeHint().width() + _GAP for each in (self.copy, self.edit))
        if "versions" in self.__dict__:
            beside += self.versions.sizeHint().width() + _GAP
        room = min(int(width * _BUBBLE_SHARE), width - beside)
        limit = max(room - 2 * _PADDING, _NARROWEST)
        metrics = self.text.fontMetrics()
        lines = self.text.text().split("\n")
        # The longest lines are the widest, but for a little: not every line is measured.
        longest = sorted(lines, key=len, reverse=True)[:3]
        widest = max(metrics.horizontalAdvance(line[:_FOLDED]) for line in longest) + 2
        self.text.setFixedWidth(min(widest, limit))
        self.text.fit(min(widest, limit))
        if self._message.attachments:
            self.chips.fit(limit)

    def highlight(self, pattern: re.Pattern[str]) -> int:
        """Mark the words. Returns the place of the first from the top, in pixels."""
        found = pattern.search(self._message.text)
        if found is not None and found.end() > _FOLDED:
            self._unfold()
        return self.text.highlight(pattern) or 0

    def open_editor(self) -> None:
        """Let the person write another version of the message."""
        if self._editor is None:
            self._editor = Editor(
                self._theme,
                self._message.text,
                "Another version of your message",
                "Send",
                attachments=self._message.attachments,
            )
            self._editor.sent.connect(self._send)
            self._editor.cancelled.connect(self._close_editor)
            self._column.addWidget(self._editor)
            self._editor.show()  # now, so that its height counts
        self._row.hide()
        self._editor.text.setFocus()

    def _send(self, text: str) -> None:
        if self._chat.is_busy:
            assert self._editor is not None
            self._editor.say_busy()
            return
        self._close_editor()
        self._chat.edit(self._message.id, text)

    def _close_editor(self) -> None:
        if self._editor is not None:
            self._editor.hide()
            self._editor.deleteLater()
            self._editor = None
        self._row.show()
        self.edit.setFocus()

    def _unfold(self) -> None:
        self._is_whole = True
        self.show_message(self._message)
        self.fit(self._width)
