"""The list of conversations: grouped by age, filtered by a search."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from potluck_app.history import Summary

_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex
_WEEK_DAYS = 7


class ChatListRole(IntEnum):
    """The data of a row beside its text."""

    ID = Qt.ItemDataRole.UserRole + 1  # None for a heading


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    id: str | None


class ChatListModel(QAbstractListModel):
    """Headings and conversations, the newest first."""

    def __init__(self, parent: QObject | None = None, now: Callable[[], float] = time.time) -> None:
        super().__init__(parent)
        self._now = now
        self._summaries: dict[str, Summary] = {}
        self._search = ""
        self._rows: list[_Row] = []

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return row.text
        if role == Qt.ItemDataRole.ToolTipRole and row.id is not None:
            return row.text
        return row.id if role == ChatListRole.ID else None

    def flags(self, index: _Index) -> Qt.ItemFlag:
        if not index.isValid() or self._rows[index.row()].id is None:
            return Qt.ItemFlag.NoItemFlags
        return Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable

    def reset(self, summaries: Iterable[Summary]) -> None:
        self._summaries = {summary.id: summary for summary in summaries}
        self._arrange()

    def put(self, summary: Summary) -> None:
        """Add a conversation, or update it."""
        before = self._summaries.get(summary.id)
        self._summaries[summary.id] = summary
        if before != summary:
            self._arrange()

    def remove(self, conversation_id: str) -> None:
        if self._summaries.pop(conversation_id, None) is not None:
            self._arrange()

    def search(self, text: str) -> None:
        """Show only conversations whose title contains this text."""
        self._search = text.strip().casefold()
        self._arrange()

    def index_of(self, conversation_id: str | None) -> QModelIndex:
        for number, row in enumerate(self._rows):
            if row.id is not None and row.id == conversation_id:
                return self.index(number)
        return QModelIndex()

    def _arrange(self) -> None:
        newest_first = sorted(self._summaries.values(), key=lambda s: s.updated, reverse=True)
        rows: list[_Row] = []
        heading = ""
        for summary in newest_first:
            if self._search not in summary.title.casefold():
                continue
            group = _age_group(summary.updated, self._now())
            if group != heading:
                heading = group
                rows.append(_Row(heading, None))
            rows.append(_Row(summary.title, summary.id))
        self.beginResetModel()
        self._rows = rows
        self.endResetModel()


def _age_group(updated: float, now: float) -> str:
    # Days of the person's own calendar, so in local time.
    day = datetime.fromtimestamp(updated).date()  # noqa: DTZ006
    days = (datetime.fromtimestamp(now).date() - day).days  # noqa: DTZ006
    if days <= 0:
        return "Today"
    return "Last 7 days" if days <= _WEEK_DAYS else "Older"
