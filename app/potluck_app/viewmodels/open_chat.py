"""One conversation in memory: what is asked, the reply that is being written, what is kept of it.

The reply belongs to the conversation: it goes on while another one is shown. Every piece of it is on
disk before the next one is written, so a program that is killed loses nothing that was seen.
"""

from collections.abc import Callable, Sequence

import msgspec
from PySide6.QtCore import QObject, Signal

from potluck.api.values.schema import ClusterState
from potluck_app.backend import Backend
from potluck_app.chats.exchange import branch
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import (
    Attachment,
    Conversation,
    Message,
    Settings,
    Stats,
    Summary,
    new_id,
    title_of,
)
from potluck_app.streams import Reply, ReplyEnd
from potluck_app.viewmodels.answering import sees
from potluck_app.viewmodels.awaited import Awaited, awaited
from potluck_app.viewmodels.keeper import Keeper
from potluck_app.viewmodels.prompt import can_go_on, fitting, together


def usable_context(state: ClusterState | None, settings: Settings) -> int:
    """Return how many tokens may be sent and answered; 0: that is not known yet."""
    loaded = state.model.context if state else 0
    return min(settings.context, loaded) if settings.context and loaded else loaded


class OpenChat(QObject):
    """A conversation that is shown, or that a reply is being written in.

    Signals:
        path_changed: the first row from which the shown messages are others.
        message_changed: the row of a message that has changed.
        listed: the Summary, whenever the list should show it anew.
        busy_changed: a reply has begun, or has ended.
        waits: the reply waits for another thing.

    Attributes:
        waits_for: what the reply under way waits for, as the node said last.
    """

    path_changed = Signal(int)
    message_changed = Signal(int)
    listed = Signal(object)
    busy_changed = Signal(bool)
    waits = Signal()

    def __init__(
        self,
        conversation: Conversation,
        backend: Backend,
        keeper: Keeper,
        now: Callable[[], float],
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self.tree = Tree(conversation.messages, conversation.leaf)
        self._head = msgspec.structs.replace(conversation, messages=())
        self._backend, self._keeper, self._now = backend, keeper, now
        self._reply: Reply | None = None
        self._writing = ""  # id of the message that the reply is written into
        self._before: Stats | None = None  # figures of its part that was there before
        self.waits_for = Awaited()
        self._is_saving = self._is_behind = False

    @property
    def id(self) -> str:
        return self._head.id

    @property
    def title(self) -> str:
        return self._head.title

    @property
    def settings(self) -> Settings:
        return self._head.settings

    @property
    def is_busy(self) -> bool:
        return self._reply is not None

    @property
    def conversation(self) -> Conversation:
        """All of it, as a value."""
        return msgspec.structs.replace(self._head, messages=self.tree.messages, leaf=self.tree.leaf)

    # --- what the person does

    def send(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Send a message; the reply is written below it."""
        self._say(text, tuple(attachments), parent=self.tree.leaf)

    def edit(self, message_id: str, text: str) -> None:
        """Write another version of a message; the one before stays.

        One of the person is sent. A reply is what the model will read as its own from now on.
        """
        before = self.tree.get(message_id)
        if before is not None and before.role == "user":
            self._say(text, before.attachments, parent=before.parent)
        elif before is not None and text and not self.is_busy:
            reply = Message(id=new_id(), parent=before.parent, role="assistant", text=text)
            self._show(self.tree.add(reply))
            self._keep(reply)

    def branch(self, message_id: str) -> Conversation | None:
        """Return a new conversation with the shown messages up to this one; None: it is not shown."""
        row = self.tree.row_of(message_id)
        path = [] if row is None else self.tree.path()[: row + 1]
        return branch(self._head, path, self._now()) if path else None

    def regenerate(self, message_id: str) -> None:
        """Write another version of a reply. One that failed before its first word is written anew."""
        before = self.tree.get(message_id)
        if self.is_busy or before is None or before.role != "assistant":
            return
        self._show(self.tree.show(message_id))
        is_empty = not before.text and before.status != "done"
        self._ask(before.parent, again=before.id if is_empty else None)

    def go_on(self, message_id: str) -> None:
        """Write on at the end of a reply that was stopped, that failed, or that was cut."""
        before = self.tree.get(message_id)
        if self.is_busy or before is None or not can_go_on(before):
            return
        self._show(self.tree.show(message_id))
        text = before.text.rstrip()  # as templates read it: spaces would be written twice
        changes = {"text": text, "status": "streaming", "error": None, "code": None, "cut": True}
        reply = msgspec.structs.replace(before, **changes)
        self._replace(reply)
        self._receive(reply, goes_on=True)

    def choose(self, message_id: str, step: int) -> None:
        """Show the next (1) or the previous (-1) version of a message."""
        self._show(self.tree.choose(message_id, step))
        self._keep()

    def reveal(self, message_id: str) -> None:
        """Show the path through this message."""
        if self.tree.get(message_id) is not None and self.tree.row_of(message_id) is None:
            self._show(self.tree.show(message_id))

    def stop(self) -> None:
        """End the reply here; the text received so far stays."""
        if self._reply is not None:
            self._reply.stop()

    def change(self, *, title: str | None = None, pinned: bool | None = None) -> None:
        """Give it another title, or pin it. That makes it no newer."""
        title = self.title if title is None else title
        pinned = self._head.pinned if pinned is None else pinned
        self._head = msgspec.structs.replace(self._head, title=title, pinned=pinned)
        self._keep()

    def set_settings(self, settings: Settings) -> None:
        self._head = msgspec.structs.replace(self._head, settings=settings)
        self._keep()

    # --- the reply

    def _say(self, text: str, attachments: tuple[Attachment, ...], parent: str | None) -> None:
        if self.is_busy or not (text or attachments):
            return
        message = Message(
            id=new_id(), parent=parent, role="user", text=text, attachments=attachments
        )
        if not self.tree.messages:
            title = title_of(text or attachments[0].name)
            self._head = msgspec.structs.replace(self._head, title=title)
        self._show(self.tree.add(message))
        self._ask(message.id, also=message)

    def _ask(
        self, parent: str | None, *, also: Message | None = None, again: str | None = None
    ) -> None:
        """Ask for the reply to a message.

        Args:
            parent: the message that is answered.
            also: a message that is not on disk yet.
            again: the reply in whose place this one is written; None: it is a new version.
        """
        reply = Message(
            id=again or new_id(), parent=parent, role="assistant", text="", status="streaming"
        )
        if again is None:
            self._show(self.tree.add(reply))
        else:
            self._replace(reply)
        self._receive(reply, also=also)

    def _receive(
        self, reply: Message, *, also: Message | None = None, goes_on: bool = False
    ) -> None:
        """Ask for a reply that is shown already; with `goes_on`, for the rest of it."""
        path = self.tree.path()
        end = self.tree.row_of(reply.id) or 0
        settings, state = self.settings, self._backend.state
        context, is_blind = usable_context(state, settings), sees(state) is False
        asked = fitting(path[: end + goes_on], context, settings.system, sees=not is_blind)
        self._writing, self._before = reply.id, reply.stats
        self.waits_for = Awaited()
        self._head = msgspec.structs.replace(self._head, updated=self._now())
        self._keep(*([also] if also else []), reply)
        self._reply = self._backend.chat(asked, settings, goes_on=goes_on)
        self._reply.waits.connect(self._on_waits)
        self._reply.text.connect(self._on_text)
        self._reply.finished.connect(self._on_finished)
        self.busy_changed.emit(True)

    def _on_waits(self, comment: str) -> None:
        """Keep how far the message is read, or what has to end first."""
        if (found := awaited(comment)) is not None:
            self.waits_for = found
            self.waits.emit()

    def _on_text(self, text: str) -> None:
        message = self._written()
        assert self._reply is not None
        stats = together(self._before, self._reply.figures())
        text = message.text + text
        self._replace(msgspec.structs.replace(message, text=text, stats=stats, cut=False))
        self._save_growing()

    def _on_finished(self, end: ReplyEnd) -> None:
        self._reply = None
        status = "failed" if end.error else "stopped" if end.stopped else "done"
        message = msgspec.structs.replace(
            self._written(),
            status=status,
            error=end.error,
            code=end.code,
            stats=together(self._before, end.stats),
            cut=end.cut,
        )
        self._replace(message)
        self._head = msgspec.structs.replace(self._head, updated=self._now())
        self._keep(message)
        self.busy_changed.emit(False)

    def _written(self) -> Message:
        message = self.tree.get(self._writing)
        assert message is not None
        return message

    def _save_growing(self) -> None:
        """Write the reply so far. What comes meanwhile is written together after that."""
        if self._is_saving:
            self._is_behind = True
            return
        self._is_saving, self._is_behind = True, False
        message, chat = self._written(), self.id
        self._keeper.write(lambda history: history.put_message(chat, message), self._on_saved)

    def _on_saved(self) -> None:
        self._is_saving = False
        if self._is_behind and self.is_busy:
            self._save_growing()

    # --- keeping

    def _replace(self, message: Message) -> None:
        self.tree.replace(message)
        row = self.tree.row_of(message.id)
        if row is not None:
            self.message_changed.emit(row)

    def _show(self, row: int) -> None:
        self.path_changed.emit(row)

    def _keep(self, *messages: Message) -> None:
        """Write the conversation, and of its messages these."""
        head = msgspec.structs.replace(self._head, leaf=self.tree.leaf, messages=messages)
        self._keeper.write(lambda history: history.add(head))
        self.listed.emit(msgspec.convert(self._head, Summary, from_attributes=True))
