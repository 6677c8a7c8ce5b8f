"""The messages that are shown, as a Qt model: the only source of the chat views."""

from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from potluck_app.chats.tree import Tree
from potluck_app.chats.values import Message

_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex


class ConversationModel(QAbstractListModel):
    """One row per message of the path through a conversation, the oldest first."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._tree = Tree()
        self._count = 0  # rows that the views know of

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else self._count

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        is_text = role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole)
        return self._tree.at(index.row()).text if index.isValid() and is_text else None

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._tree.path())

    def at(self, row: int) -> Message:
        return self._tree.at(row)

    def versions(self, row: int) -> tuple[int, int]:
        """Return which version of its message this is, from 0, and how many there are."""
        return self._tree.versions(self._tree.at(row).id)

    def last(self) -> Message | None:
        return self._tree.at(self._count - 1) if self._count else None

    def reset(self, tree: Tree) -> None:
        """Show another conversation, whose owner says from now on what changes in it."""
        self.beginResetModel()
        self._tree, self._count = tree, len(tree)
        self.endResetModel()

    def change_from(self, row: int) -> None:
        """Say that all messages from this row on are others now."""
        if row < self._count:
            self.beginRemoveRows(QModelIndex(), row, self._count - 1)
            self._count = row
            self.endRemoveRows()
        if row < len(self._tree):
            self.beginInsertRows(QModelIndex(), row, len(self._tree) - 1)
            self._count = len(self._tree)
            self.endInsertRows()

    def change(self, row: int) -> None:
        """Say that the message of this row has changed."""
        if row < self._count:
            self.dataChanged.emit(self.index(row), self.index(row))
