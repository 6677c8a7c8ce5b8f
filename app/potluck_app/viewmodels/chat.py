"""The chat: the shown conversation, the requests to the node, and what is kept on disk."""

import time
from collections.abc import Callable, Sequence

import msgspec
from PySide6.QtCore import QObject, Signal

from potluck_app.backend import Backend
from potluck_app.background import Background
from potluck_app.history import Conversation, History, Message, Summary, new_id, title_of
from potluck_app.streams import Reply, ReplyEnd
from potluck_app.viewmodels.blocks import split_thinking
from potluck_app.viewmodels.chat_list import ChatListModel
from potluck_app.viewmodels.conversation import ConversationModel

# A token of English text has about 4 characters; 3 leaves room for code and other languages.
_CHARACTERS_PER_TOKEN = 3
_REPLY_SHARE = 4  # a quarter of the context is kept for the reply


class Chat(QObject):
    """The conversations, and the one that is shown.

    Signals:
        shown_changed: another conversation is shown, or its title changed.
        busy_changed: a reply has begun, or has ended.
        deleted: the title of a deleted conversation that can be restored.
        trouble: a sentence about a conversation that could not be stored.
    """

    shown_changed = Signal()
    busy_changed = Signal(bool)
    deleted = Signal(str)
    trouble = Signal(str)

    def __init__(
        self,
        backend: Backend,
        history: History,
        parent: QObject | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(parent)
        self.messages = ConversationModel(self)
        self.list = ChatListModel(self, now)
        self._backend, self._history, self._now = backend, history, now
        self._disk = Background("history", self)
        self._shown: Conversation | None = None  # None: a new conversation without messages
        self._reply: Reply | None = None
        self._awaited: str | None = None  # the conversation to show when it has been read
        self._deleted: Conversation | None = None

    def start(self) -> None:
        """Read the list of conversations from disk."""
        self._disk.run(self._history.summaries, self.list.reset)

    def close(self) -> None:
        """Stop the reply and wait until everything is on disk."""
        self.stop()
        self._disk.close(timeout_s=5)

    @property
    def is_busy(self) -> bool:
        return self._reply is not None

    @property
    def shown_id(self) -> str | None:
        return self._shown.id if self._shown else None

    @property
    def title(self) -> str:
        return self._shown.title if self._shown else "New chat"

    # --- conversations

    def new(self) -> None:
        """Show a new, empty conversation."""
        self.stop()
        self._awaited = None
        self._show(None)

    def open(self, conversation_id: str) -> None:
        """Show a conversation of the list."""
        self._awaited = None
        if conversation_id == self.shown_id:
            return
        self.stop()
        self._awaited = conversation_id
        self._disk.run(
            lambda: self._history.load(conversation_id),
            lambda conversation: self._on_loaded(conversation_id, conversation),
        )

    def _on_loaded(self, conversation_id: str, conversation: Conversation | None) -> None:
        if conversation_id != self._awaited:
            return  # the person has chosen another one meanwhile
        self._awaited = None
        if conversation is None:
            self.trouble.emit("This chat could not be read from the disk.")
        elif not self.is_busy:
            self._show(conversation)

    def rename(self, conversation_id: str, title: str) -> None:
        title = " ".join(title.split())
        if not title:
            return
        if self._shown is not None and conversation_id == self._shown.id:
            self._shown = msgspec.structs.replace(self._shown, title=title)
            self._save(self._shown)
            self._list_again(self._shown)
            self.shown_changed.emit()
            return

        def change() -> Conversation | None:
            conversation = self._history.load(conversation_id)
            if conversation is not None:
                conversation = msgspec.structs.replace(conversation, title=title)
                self._history.save(conversation)
            return conversation

        self._disk.run(change, self._list_again, self._on_disk_trouble)

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation; `undelete` restores the last deleted one."""
        if conversation_id == self.shown_id:
            self.new()

        def take() -> Conversation | None:
            conversation = self._history.load(conversation_id)
            self._history.delete(conversation_id)
            return conversation

        def done(conversation: Conversation | None) -> None:
            self._deleted = conversation
            self.list.remove(conversation_id)
            if conversation is not None:
                self.deleted.emit(conversation.title)

        self._disk.run(take, done, self._on_disk_trouble)

    def undelete(self) -> None:
        conversation, self._deleted = self._deleted, None
        if conversation is not None:
            self._save(conversation)
            self._list_again(conversation)

    # --- messages

    def send(self, text: str) -> None:
        """Send this message; the reply is written below it."""
        text = text.strip()
        if not text or self.is_busy:
            return
        if self._shown is None:
            self._shown = Conversation(id=new_id(), title=title_of(text), updated=self._now())
            self.shown_changed.emit()
        self.messages.append(Message(role="user", text=text))
        self._ask()

    def regenerate(self) -> None:
        """Replace the last reply by a new one."""
        last = self.messages.last()
        if self.is_busy or last is None or last.role != "assistant":
            return
        self.messages.remove_last()
        self._ask()

    def stop(self) -> None:
        """End the reply here; the text received so far stays."""
        if self._reply is not None:
            self._reply.stop()

    def _ask(self) -> None:
        context = self._backend.state.model.context if self._backend.state else 0
        asked = fitting(self.messages.messages, context)
        self.messages.append(Message(role="assistant", text="", status="streaming"))
        self._keep()
        self._reply = self._backend.chat(asked)
        self._reply.text.connect(self.messages.extend_last)
        self._reply.finished.connect(self._on_finished)
        self.busy_changed.emit(True)

    def _on_finished(self, end: ReplyEnd) -> None:
        last = self.messages.last()
        self._reply = None
        if last is not None:
            status = "failed" if end.error else "stopped" if end.stopped else "done"
            self.messages.replace_last(
                msgspec.structs.replace(last, status=status, error=end.error, stats=end.stats)
            )
        self._keep()
        self.busy_changed.emit(False)

    # --- keeping

    def _show(self, conversation: Conversation | None) -> None:
        self._shown = conversation
        self.messages.reset(conversation)
        self.shown_changed.emit()

    def _keep(self) -> None:
        assert self._shown is not None
        self._shown = msgspec.structs.replace(
            self._shown, messages=self.messages.messages, updated=self._now()
        )
        self._save(self._shown)
        self._list_again(self._shown)

    def _save(self, conversation: Conversation) -> None:
        self._disk.run(lambda: self._history.save(conversation), failed=self._on_disk_trouble)

    def _list_again(self, conversation: Conversation | None) -> None:
        if conversation is not None:
            self.list.put(msgspec.convert(conversation, Summary, from_attributes=True))

    def _on_disk_trouble(self, error: Exception) -> None:
        self.trouble.emit(f"This chat could not be written to the disk: {error}.")


def fitting(messages: Sequence[Message], context: int) -> list[Message]:
    """Return the newest messages that fit into the context. The first one is the person's.

    Args:
        messages: the whole conversation; the new question is the last one.
        context: in tokens; 0: no model is loaded yet, and the node decides.
    """
    usable: list[Message] = []
    for message in messages:
        if usable and usable[-1].role == message.role == "user":
            usable.pop()  # its reply failed; most chat templates need alternating roles
        text = split_thinking(message.text)[1] if message.role == "assistant" else message.text
        if text:  # thoughts are left out: they fill the context, and models do not expect them
            usable.append(msgspec.structs.replace(message, text=text))
    if context <= 0:
        return usable
    room = (context - context // _REPLY_SHARE) * _CHARACTERS_PER_TOKEN
    kept: list[Message] = []
    for message in reversed(usable):
        room -= len(message.text)
        if kept and room < 0:
            break
        kept.append(message)
    kept.reverse()
    while len(kept) > 1 and kept[0].role != "user":
        kept.pop(0)
    return kept
