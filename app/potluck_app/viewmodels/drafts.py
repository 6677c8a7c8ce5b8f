"""What is written in each conversation and not sent, kept also over a restart."""

from PySide6.QtCore import QObject, QTimer

from potluck_app.chats.values import Draft
from potluck_app.viewmodels.keeper import Keeper

_WAIT_MS = 300  # without a key, before a draft is written
_WAIT_WITH_PICTURES_MS = 5000  # since all of them are written with it


class Drafts(QObject):
    """The drafts that were read or changed in this run, by the ids of their conversations."""

    def __init__(self, keeper: Keeper, parent: QObject) -> None:
        super().__init__(parent)
        self._keeper = keeper
        self._drafts: dict[str, Draft] = {}
        self._unwritten: set[str] = set()
        self._timer = QTimer(self, singleShot=True, interval=_WAIT_MS)
        self._timer.timeout.connect(self.write)

    def of(self, chat: str) -> Draft:
        return self._drafts.get(chat, Draft())

    def learn(self, chat: str, read: Draft) -> bool:
        """Take over what was read from disk. Returns whether it says anything new."""
        if chat in self._drafts:
            return False
        self._drafts[chat] = read
        return read != Draft()

    def set(self, chat: str, draft: Draft) -> None:
        """Change a draft. It is written soon."""
        if draft != self.of(chat):
            self._drafts[chat] = draft
            self._unwritten.add(chat)
            has_pictures = any(each.picture for each in draft.attachments)
            self._timer.start(_WAIT_WITH_PICTURES_MS if has_pictures else _WAIT_MS)

    def write(self) -> None:
        """Write now what is not on disk."""
        self._timer.stop()
        for chat in self._unwritten:
            draft = self._drafts[chat]
            self._keeper.write(
                lambda history, chat=chat, draft=draft: history.put_draft(chat, draft)
            )
        self._unwritten.clear()
