"""The conversations: the one that is shown, those in which replies are written, what is kept."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from PySide6.QtCore import QObject, Signal

from potluck_app.backend import Backend
from potluck_app.chats import exchange
from potluck_app.chats.history import History
from potluck_app.chats.tree import Tree
from potluck_app.chats.values import (
    Attachment,
    Conversation,
    Draft,
    Hit,
    Settings,
    Summary,
    new_id,
)
from potluck_app.viewmodels.awaited import Awaited
from potluck_app.viewmodels.chat_list import ChatListModel
from potluck_app.viewmodels.conversation import ConversationModel
from potluck_app.viewmodels.drafts import Drafts
from potluck_app.viewmodels.keeper import Keeper
from potluck_app.viewmodels.open_chat import OpenChat, usable_context
from potluck_app.viewmodels.presets import Presets

_UNREADABLE = "This chat could not be read from the disk."
_NEW = ""  # id of the new chat, whose draft is kept too


class Chat(QObject):
    """The conversations, and the one that is shown.

    Signals:
        shown_changed: another conversation is shown.
        settings_changed: the settings of the shown conversation are others.
        revealed: the row of the message to bring into view, and the words to highlight in it.
        busy_changed: in the shown conversation a reply has begun, or has ended.
        waits: what the reply in the shown conversation waits for is another thing.
        replied: in the shown conversation a reply has ended.
        found: the search has ended; the number of hits, or -1 if nothing is searched for.
        deleted: what was deleted and can be restored.
        said: a sentence about something that was done.
        trouble: a sentence about something that could not be done.
        models_wanted: the person wants to choose another model.
        unkept: why nothing that is written in this run is kept.
    """

    shown_changed = Signal()
    settings_changed = Signal()
    revealed = Signal(int, str)
    busy_changed = Signal(bool)
    waits = Signal()
    replied = Signal()
    found = Signal(int)
    deleted = Signal(str)
    said = Signal(str)
    trouble = Signal(str)
    models_wanted = Signal()
    unkept = Signal(str)

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
        self.list.renamed.connect(self.rename)
        self._backend, self._now = backend, now
        self._keeper = Keeper(history, self)
        self._keeper.trouble.connect(self.trouble)
        self._keeper.unkept.connect(self._on_unkept)
        self.presets = Presets(self._keeper, self)
        self.why_unkept = ""  # empty: chats are kept
        self._shown: OpenChat | None = None  # None: a new conversation without messages
        self._open: dict[str, OpenChat] = {}  # the shown one, and those with a reply under way
        self._awaited: str | None = None  # the conversation to show when it has been read
        self._new_settings = Settings()
        self._drafts = Drafts(self._keeper, self)
        self._deleted: list[Summary] = []
        self._searched = ""

    def start(self) -> None:
        """Read the list of conversations from disk."""
        self._keeper.read(lambda history: history.summaries(), self.list.reset)
        self.presets.read()
        self._keeper.read(lambda history: history.draft(_NEW), self._on_new_draft)

    def close(self) -> None:
        """Stop the replies and wait until everything is on disk."""
        self.stop_all()
        self._drafts.write()
        self._keeper.close()

    def _on_unkept(self, why: str) -> None:
        self.why_unkept = why
        self.unkept.emit(why)

    @property
    def is_busy(self) -> bool:
        return self._shown is not None and self._shown.is_busy

    @property
    def shown_id(self) -> str | None:
        return self._shown.id if self._shown else None

    @property
    def title(self) -> str:
        return self._shown.title if self._shown else "New chat"

    @property
    def settings(self) -> Settings:
        return self._shown.settings if self._shown else self._new_settings

    @property
    def waits_for(self) -> Awaited:
        """What the reply in the shown conversation waits for."""
        return self._shown.waits_for if self._shown else Awaited()

    @property
    def draft(self) -> Draft:
        return self._drafts.of(self.shown_id or _NEW)

    def context(self) -> int:
        """Return how many tokens the shown conversation may have; 0: that is not known yet."""
        return usable_context(self._backend.state, self.settings)

    # --- which conversation is shown

    def new(self) -> None:
        """Show a new, empty conversation. Replies under way go on."""
        self._awaited = None
        self._show(None)

    def open(self, chat: str, message: str | None = None, words: str = "") -> None:
        """Show a conversation of the list.

        Args:
            chat: its id.
            message: the one to bring into view.
            words: to highlight in that message.
        """
        self._awaited = None
        if chat in self._open:
            self._show(self._open[chat])
            self._reveal(message, words)
            return
        self._awaited = chat

        def work(history: History) -> tuple[Conversation | None, Draft]:
            return history.load(chat), history.draft(chat)

        self._keeper.read(work, lambda read: self._on_loaded(chat, *read, message, words))

    def _on_loaded(
        self, chat: str, read: Conversation | None, draft: Draft, message: str | None, words: str
    ) -> None:
        if chat != self._awaited:
            return  # the person has chosen another one meanwhile
        self._awaited = None
        if read is None:
            self.trouble.emit(_UNREADABLE)
            return
        self._drafts.learn(chat, draft)
        self._show(self._opened(read))
        self._reveal(message, words)

    def _opened(self, conversation: Conversation) -> OpenChat:
        chat = OpenChat(conversation, self._backend, self._keeper, self._now, self)
        self._open[chat.id] = chat
        chat.path_changed.connect(
            lambda row: self._shown is chat and self.messages.change_from(row)
        )
        chat.message_changed.connect(lambda row: self._shown is chat and self.messages.change(row))
        chat.listed.connect(self.list.put)
        chat.busy_changed.connect(lambda is_busy: self._on_busy(chat, is_busy))
        chat.waits.connect(lambda: self._shown is chat and self.waits.emit())
        return chat

    def _show(self, chat: OpenChat | None) -> None:
        before, self._shown = self._shown, chat
        self.messages.reset(chat.tree if chat else Tree())
        if before is not None and before is not chat and not before.is_busy:
            self._close(before)
        self.shown_changed.emit()
        self.busy_changed.emit(self.is_busy)

    def _close(self, chat: OpenChat) -> None:
        self._open.pop(chat.id, None)
        chat.deleteLater()

    def _reveal(self, message: str | None, words: str) -> None:
        if message is None or self._shown is None:
            return
        self._shown.reveal(message)
        row = self._shown.tree.row_of(message)
        if row is not None:
            self.revealed.emit(row, words)

    def _on_busy(self, chat: OpenChat, is_busy: bool) -> None:
        self.list.set_busy(chat.id, is_busy)
        if chat is self._shown:
            self.busy_changed.emit(is_busy)
            if not is_busy:
                self.replied.emit()
        elif not is_busy:
            self._close(chat)

    # --- messages of the shown conversation

    def send(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Send this message; the reply is written below it."""
        text = text.strip()
        if not (text or attachments) or self.is_busy:
            return
        self._awaited = None
        self.set_draft(Draft())
        if self._shown is None:
            head = Conversation(
                id=new_id(), title="", updated=self._now(), settings=self._new_settings
            )
            self._new_settings = Settings()
            self._shown = self._opened(head)
            self.messages.reset(self._shown.tree)
            self._shown.send(text, attachments)
            self.shown_changed.emit()
        else:
            self._shown.send(text, attachments)

    def regenerate(self, message_id: str | None = None) -> None:
        """Write another version of a reply, or of the last one."""
        last = self.messages.last()
        if self._shown is not None and last is not None:
            self._shown.regenerate(message_id or last.id)

    def go_on(self, message_id: str) -> None:
        """Write on at the end of a reply that is not whole."""
        if self._shown is not None:
            self._shown.go_on(message_id)

    def edit(self, message_id: str, text: str) -> None:
        """Write another version of a message. One of the person is sent."""
        if self._shown is not None:
            self._shown.edit(message_id, text.strip())

    def choose(self, message_id: str, step: int) -> None:
        """Show the next (1) or the previous (-1) version of a message."""
        if self._shown is not None:
            self._shown.choose(message_id, step)

    def branch(self, message_id: str) -> None:
        """Go on in a new conversation with the messages up to this one."""
        if self._shown is not None and (new := self._shown.branch(message_id)) is not None:
            self._keeper.write(lambda history: history.save(new))
            self._on_imported(new)

    def stop(self) -> None:
        """End the reply in the shown conversation; the text received so far stays."""
        if self._shown is not None:
            self._shown.stop()

    def stop_all(self) -> None:
        """End the replies in all conversations."""
        for chat in tuple(self._open.values()):
            chat.stop()

    def set_settings(self, settings: Settings) -> None:
        """Answer the shown conversation in this way from its next message on."""
        if settings == self.settings:
            return
        if self._shown is None:
            self._new_settings = settings
        else:
            self._shown.set_settings(settings)
        self.settings_changed.emit()

    # --- drafts

    def set_draft(self, draft: Draft) -> None:
        """Keep what is written in the shown conversation and not sent."""
        self._drafts.set(self.shown_id or _NEW, draft)

    def _on_new_draft(self, draft: Draft) -> None:
        if self._drafts.learn(_NEW, draft) and self._shown is None:
            self.shown_changed.emit()

    # --- the list

    def search(self, text: str) -> None:
        """Show in the list what contains this text; with no text, all conversations."""
        self._searched = text.strip()
        if not self._searched:
            self._on_found("", None)
            return
        searched = self._searched
        self._keeper.read(
            lambda history: history.search(searched), lambda hits: self._on_found(searched, hits)
        )

    def _on_found(self, searched: str, hits: Sequence[Hit] | None) -> None:
        if searched == self._searched:  # else the person has typed on
            self.list.show_hits(hits)
            self.found.emit(-1 if hits is None else len(hits))

    @property
    def searched(self) -> str:
        return self._searched

    def rename(self, chat: str, title: str) -> None:
        title = " ".join(title.split())
        if title:
            self._change(chat, title=title)

    def pin(self, chat: str, pinned: bool) -> None:
        """Keep a conversation at the top of the list, or no longer."""
        self._change(chat, pinned=pinned)

    def _change(self, chat: str, *, title: str | None = None, pinned: bool | None = None) -> None:
        if chat in self._open:
            self._open[chat].change(title=title, pinned=pinned)
            return
        before = self.list.get(chat)
        if before is None:
            return
        after = msgspec.structs.replace(
            before,
            title=before.title if title is None else title,
            pinned=before.pinned if pinned is None else pinned,
        )
        self._keeper.write(lambda history: history.put(after))
        self.list.put(after)

    def delete(self, chat: str) -> None:
        """Delete a conversation. `undelete` restores it until `forget_deleted` is called."""
        summary = self.list.get(chat)
        if summary is None:
            return
        if chat in self._open:
            self._open[chat].stop()
        if chat == self.shown_id:
            self.new()
        self._deleted.append(summary)
        self._keeper.write(lambda history: history.delete(chat))
        self.list.remove(chat)
        count = len(self._deleted)
        self.deleted.emit(summary.title if count == 1 else f"{count} chats")

    def undelete(self) -> None:
        """Restore what was deleted since `forget_deleted`."""
        for summary in self._deleted:
            self._keeper.write(lambda history, chat=summary.id: history.delete(chat, deleted=False))
            self.list.put(summary)
        self._deleted.clear()

    def forget_deleted(self) -> None:
        """Remove what was deleted from the disk."""
        if self._deleted:
            self._deleted.clear()
            self._keeper.write(lambda history: history.forget_deleted())

    # --- files

    def export(self, chat: str, path: Path, form: Literal["md", "json"]) -> None:
        """Write a conversation into a file: as it is shown (Markdown), or all versions (JSON)."""

        def work(history: History) -> str:
            read = history.load(chat)
            return exchange.export(read, path, form) if read else _UNREADABLE

        self._keeper.read(work, self.said.emit)

    def import_file(self, path: Path) -> None:
        """Add the conversation of a file to the list and show it."""

        def work(history: History) -> Conversation | str:
            try:
                conversation = exchange.import_file(path, self._now())
            except exchange.ExchangeError as error:
                return str(error)
            history.save(conversation)
            return conversation

        self._keeper.read(work, self._on_imported)

    def _on_imported(self, read: Conversation | str) -> None:
        if isinstance(read, str):
            self.trouble.emit(read)
            return
        self.list.put(msgspec.convert(read, Summary, from_attributes=True))
        self.open(read.id)
