"""What a reply without a word waits for, shown where its words will be."""

from PySide6.QtCore import QObject

from potluck_app.viewmodels.awaited import Awaited
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.conversation.transcript import Transcript


class WaitingLine(QObject):
    """Shows what happens before the first word: to the model or the node, else to the message."""

    def __init__(self, chat: Chat, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._chat, self._transcript = chat, transcript
        self._loading = Awaited()
        chat.waits.connect(self._refresh)
        chat.busy_changed.connect(self._refresh)
        chat.shown_changed.connect(self._refresh)

    def show_loading(self, line: str, fraction: float | None = None) -> None:
        """Show what happens to the model, or to the node; an empty line: nothing."""
        self._loading = Awaited(line, fraction)
        self._refresh()

    def _refresh(self, _is_busy: bool = False) -> None:
        shown = self._loading if self._loading.line else self._chat.waits_for
        self._transcript.show_progress(*shown)
