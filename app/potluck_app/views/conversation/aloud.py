"""What a screen reader says of the reply that is written."""

from PySide6.QtCore import QObject

from potluck_app.viewmodels.blocks import split_thinking
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.spoken import Spoken
from potluck_app.views.conversation.transcript import Transcript
from potluck_app.views.widgets.controls import announce


class ReadingAloud(QObject):
    """Says whole sentences as they come, and how the reply ended."""

    def __init__(self, chat: Chat, transcript: Transcript) -> None:
        super().__init__(transcript)
        self._chat, self._transcript = chat, transcript
        self._spoken = ("", Spoken())  # of the message with this id
        chat.messages.dataChanged.connect(self._on_growing)
        chat.replied.connect(self._speak)

    def _on_growing(self) -> None:
        if self._chat.is_busy:  # the end is said once, by `replied`
            self._speak()

    def _speak(self) -> None:
        """Let a screen reader say what is new in the reply that is written."""
        last = self._chat.messages.last()
        if last is None or last.role != "assistant":
            return
        if last.id != self._spoken[0]:
            self._spoken = (last.id, Spoken())
        is_done = last.status != "streaming"
        written = self._spoken[1].more(split_thinking(last.text)[1], is_done=is_done)
        ending = last.error or ("The reply was stopped." if last.status == "stopped" else "")
        if written:
            announce(self._transcript, written, is_quoted=True)
        elif is_done and ending:
            announce(self._transcript, ending)
