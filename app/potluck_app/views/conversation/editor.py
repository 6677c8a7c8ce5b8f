"""The field in which another version of a message is written."""

from collections.abc import Sequence

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QWidget

from potluck_app.chats.values import Attachment
from potluck_app.theme import Theme
from potluck_app.views.conversation.composer import ComposerText
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.chips import Chips
from potluck_app.views.widgets.controls import button, label
from potluck_app.views.widgets.folding import Folding

_HINT = 160  # pixels beside the buttons; a narrower hint stands above them


class Editor(QFrame):
    """The field for another version of a message.

    Args:
        theme: of the window.
        text: of the version before.
        accessible_name: what is written.
        done: the word on the button that takes it.
        attachments: what goes with the version, too.

    Signals:
        sent: the text of the version.
        cancelled: the message stays as it is.
    """

    sent = Signal(str)
    cancelled = Signal()

    def __init__(
        self,
        theme: Theme,
        text: str,
        accessible_name: str,
        done: str,
        *,
        attachments: Sequence[Attachment] = (),
    ) -> None:
        super().__init__()
        self._may_be_empty = bool(attachments)
        self.setProperty("composer", "focused")
        self.text = ComposerText(theme)
        self.text.setObjectName("editor-text")
        self.text.setAccessibleName(accessible_name)
        self.text.setPlainText(text)
        self.text.submitted.connect(self._submit)
        cancel = button("Cancel", "editor-cancel", self.cancelled.emit)
        self.send = button(done, "editor-send", self._submit, kind="primary")
        self.hint = label("The version before is kept.", "meta", wrap=True)
        actions = QWidget()
        hbox(cancel, self.send, parent=actions, spacing=8)
        foot = Folding(self.hint, actions, lambda: theme.px(_HINT), at_end=True)
        self.chips = Chips(theme)
        self.chips.show_files(attachments)
        vbox(self.chips, self.text, foot, parent=self, margins=(18, 14, 8, 8), spacing=10)
        self.text.moveCursor(self.text.textCursor().MoveOperation.End)

    def say_busy(self) -> None:
        """Say why it cannot be taken now."""
        self.hint.setText("Stop the reply that is being written first.")

    def event(self, event: QEvent) -> bool:
        is_escape = isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_Escape
        if is_escape and event.type() == QEvent.Type.ShortcutOverride:
            event.accept()  # else the window takes it, to stop a reply
            return True
        if is_escape and event.type() == QEvent.Type.KeyPress:
            self.cancelled.emit()
            return True
        return super().event(event)

    def _submit(self) -> None:
        text = self.text.toPlainText().strip()
        if text or self._may_be_empty:
            self.sent.emit(text)
