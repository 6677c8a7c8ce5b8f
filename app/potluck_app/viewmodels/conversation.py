"""The messages of the shown conversation, as a Qt model: the only source of the chat views."""

from typing import Any

import msgspec
from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from potluck_app.history import Conversation, Message

_NO_INDEX = QModelIndex()
_Index = QModelIndex | QPersistentModelIndex


class ConversationModel(QAbstractListModel):
    """One row per message, the oldest first."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._messages: list[Message] = []

    def rowCount(self, parent: _Index = _NO_INDEX) -> int:
        return 0 if parent.isValid() else len(self._messages)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        is_text = role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole)
        return self._messages[index.row()].text if index.isValid() and is_text else None

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def last(self) -> Message | None:
        return self._messages[-1] if self._messages else None

    def reset(self, conversation: Conversation | None) -> None:
        """Show another conversation."""
        self.beginResetModel()
        self._messages = [] if conversation is None else list(conversation.messages)
        self.endResetModel()

    def append(self, message: Message) -> None:
        row = len(self._messages)
        self.beginInsertRows(QModelIndex(), row, row)
        self._messages.append(message)
        self.endInsertRows()

    def extend_last(self, text: str) -> None:
        """Add text to the reply that is being written."""
        last = self._messages[-1]
        self.replace_last(msgspec.structs.replace(last, text=last.text + text))

    def replace_last(self, message: Message) -> None:
        self._messages[-1] = message
        index = self.index(len(self._messages) - 1)
        self.dataChanged.emit(index, index)

    def remove_last(self) -> None:
        row = len(self._messages) - 1
        self.beginRemoveRows(QModelIndex(), row, row)
        self._messages.pop()
        self.endRemoveRows()
