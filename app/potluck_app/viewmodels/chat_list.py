"""The list of conversations: grouped by age, or what a search has found."""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any

from msgspec import Struct
from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    Signal,
)

from potluck_app.chats.values import Hit, Summary

_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex
_WEEK_DAYS = 7


class ChatListRole(IntEnum):
    """The data of a row beside its text."""

    ID = Qt.ItemDataRole.UserRole + 1  # None for a heading
    EXCERPT = Qt.ItemDataRole.UserRole + 2  # of a message that was found
    MESSAGE = Qt.ItemDataRole.UserRole + 3  # id of that message
    PINNED = Qt.ItemDataRole.UserRole + 4
    BUSY = Qt.ItemDataRole.UserRole + 5  # a reply is being written


class _Row(Struct, frozen=True):
    text: str
    id: str | None = None
    message: str | None = None
    excerpt: str = ""


class ChatListModel(QAbstractListModel):
    """Headings and conversations, pinned ones first, then the newest. Titles can be edited.

    Signals:
        renamed: the id of a conversation, and the title that the person gave it.
    """

    renamed = Signal(str, str)

    def __init__(self, parent: QObject | None = None, now: Callable[[], float] = time.time) -> None:
        super().__init__(parent)
        self._now = now
        self._summaries: dict[str, Summary] = {}
        self._busy: set[str] = set()
        self._hits: tuple[Hit, ...] | None = None  # None: nothing is searched for
        self._rows: list[_Row] = []

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        is_chat = row.id is not None
        match role:
            case Qt.ItemDataRole.DisplayRole | Qt.ItemDataRole.EditRole:
                return row.text
            case Qt.ItemDataRole.AccessibleTextRole:
                return self._said(row)
            case Qt.ItemDataRole.ToolTipRole:
                return row.text if is_chat else None
            case ChatListRole.ID:
                return row.id
            case ChatListRole.EXCERPT:
                return row.excerpt
            case ChatListRole.MESSAGE:
                return row.message
            case ChatListRole.PINNED:
                return is_chat and self._summaries[row.id].pinned if row.id else False
            case ChatListRole.BUSY:
                return row.id in self._busy
        return None

    def setData(self, index: _Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        title = " ".join(str(value).split())
        row = self._rows[index.row()]
        if role != Qt.ItemDataRole.EditRole or row.id is None or not title or title == row.text:
            return False
        self.renamed.emit(row.id, title)
        return True

    def flags(self, index: _Index) -> Qt.ItemFlag:
        if not index.isValid() or self._rows[index.row()].id is None:
            return Qt.ItemFlag.NoItemFlags
        flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
        is_hit = self._rows[index.row()].message is not None
        return flags if is_hit else flags | Qt.ItemFlag.ItemIsEditable

    def reset(self, summaries: Iterable[Summary]) -> None:
        self._summaries = {summary.id: summary for summary in summaries}
        self._arrange()

    def get(self, conversation_id: str) -> Summary | None:
        return self._summaries.get(conversation_id)

    def put(self, summary: Summary) -> None:
        """Add a conversation, or update it."""
        before = self._summaries.get(summary.id)
        self._summaries[summary.id] = summary
        if before != summary:
            self._arrange()

    def remove(self, conversation_id: str) -> None:
        if self._summaries.pop(conversation_id, None) is not None:
            self._arrange()

    @property
    def is_any_busy(self) -> bool:
        """Whether a reply is being written in any conversation."""
        return bool(self._busy)

    def set_busy(self, conversation_id: str, is_busy: bool) -> None:
        """Say whether a reply is being written in a conversation."""
        (self._busy.add if is_busy else self._busy.discard)(conversation_id)
        index = self.index_of(conversation_id)
        if index.isValid():
            self.dataChanged.emit(index, index)

    def show_hits(self, hits: Sequence[Hit] | None) -> None:
        """Show what was found; None: show all conversations again."""
        self._hits = None if hits is None else tuple(hits)
        self._arrange()

    def index_of(self, conversation_id: str | None) -> QModelIndex:
        for number, row in enumerate(self._rows):
            if row.id is not None and row.id == conversation_id:
                return self.index(number)
        return QModelIndex()

    def _said(self, row: _Row) -> str:
        summary = self._summaries.get(row.id or "")
        parts = [row.text, row.excerpt]
        parts += ["pinned"] if summary is not None and summary.pinned else []
        parts += ["a reply is being written"] if row.id in self._busy else []
        return ", ".join(part for part in parts if part)

    def _arrange(self) -> None:
        rows = self._all_rows() if self._hits is None else self._hit_rows(self._hits)
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()

    def _all_rows(self) -> list[_Row]:
        ordered = sorted(self._summaries.values(), key=lambda s: (not s.pinned, -s.updated))
        rows: list[_Row] = []
        heading = ""
        for summary in ordered:
            group = "Pinned" if summary.pinned else _age_group(summary.updated, self._now())
            if group != heading:
                heading = group
                rows.append(_Row(heading))
            rows.append(_Row(summary.title, summary.id))
        return rows

    def _hit_rows(self, hits: Sequence[Hit]) -> list[_Row]:
        known = [hit for hit in hits if hit.chat in self._summaries]
        titles = [_Row(hit.title, hit.chat) for hit in known if hit.message is None]
        messages = [
            _Row(hit.title, hit.chat, hit.message, hit.excerpt) for hit in known if hit.message
        ]
        rows = [_Row("Titles"), *titles] if titles else []
        return [*rows, _Row("Messages"), *messages] if messages else rows


def _age_group(updated: float, now: float) -> str:
    # Days of the person's own calendar, so in local time.
    day = datetime.fromtimestamp(updated).date()  # noqa: DTZ006
    days = (datetime.fromtimestamp(now).date() - day).days  # noqa: DTZ006
    if days <= 0:
        return "Today"
    return "Last 7 days" if days <= _WEEK_DAYS else "Older"
