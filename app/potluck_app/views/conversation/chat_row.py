"""How a row of the list of chats is drawn, and how its title is edited in place."""

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import (
    QLineEdit,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from potluck_app import resources
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat_list import ChatListRole

_ROW, _HIT, _FIRST_HEADING, _HEADING = 33, 52, 26, 44
_MARK = 14  # pixels of the icon of a pinned chat, and of the dot of one that is written in

_Index = QModelIndex | QPersistentModelIndex


class ChatRowDelegate(QStyledItemDelegate):
    """Draws headings, conversations, and messages that were found."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        if index.data(ChatListRole.MESSAGE) is not None:
            return QSize(100, self._px(_HIT))
        if index.data(ChatListRole.ID) is not None:
            return QSize(100, self._px(_ROW))
        return QSize(100, self._px(_FIRST_HEADING if index.row() == 0 else _HEADING))

    def _px(self, pixels: int) -> int:
        return max(self._theme.px(pixels), pixels)

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: _Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setObjectName("chat-title")
        editor.setAccessibleName(said("Title of the chat"))
        editor.setProperty("kind", "row")
        return editor

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        tokens = self._theme.tokens
        rect = QRectF(option.rect)  # pyright: ignore[reportAttributeAccessIssue] - missing in the stubs
        state = option.state  # pyright: ignore[reportAttributeAccessIssue]
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if index.data(ChatListRole.ID) is None:
            painter.setFont(self._theme.ui_font(12))
            painter.setPen(QColor(tokens.text2))
            bottom = rect.adjusted(0, 0, 0, -6)
            flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom
            painter.drawText(bottom, flags, said(index.data()))
        else:
            self._paint_back(painter, rect, state)
            self._paint_row(painter, rect, state, index)
        painter.restore()

    def _paint_back(self, painter: QPainter, rect: QRectF, state: QStyle.StateFlag) -> None:
        tokens = self._theme.tokens
        is_selected = bool(state & QStyle.StateFlag.State_Selected)
        if is_selected or state & QStyle.StateFlag.State_MouseOver:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(tokens.accent_soft if is_selected else tokens.border))
            painter.drawRoundedRect(rect, 8, 8)
        if (
            state & QStyle.StateFlag.State_HasFocus
            and state & QStyle.StateFlag.State_KeyboardFocusChange
        ):
            painter.setPen(QColor(tokens.accent))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(rect.adjusted(1, 1, -1, -1), 8, 8)

    def _paint_row(
        self, painter: QPainter, rect: QRectF, state: QStyle.StateFlag, index: _Index
    ) -> None:
        tokens = self._theme.tokens
        inner, row, hit = rect.adjusted(13, 0, -10, 0), self._px(_ROW), self._px(_HIT)
        if index.data(ChatListRole.BUSY):
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(tokens.accent))
            painter.drawEllipse(QRectF(inner.right() - 8, rect.top() + row / 2 - 4, 8, 8))
            inner.setRight(inner.right() - _MARK - 4)
        if index.data(ChatListRole.PINNED):
            place = QRectF(inner.right() - _MARK, rect.top() + (row - _MARK) / 2, _MARK, _MARK)
            picture = resources.pixmap("pin", tokens.text3, _MARK, 2.0)
            painter.drawPixmap(place, picture, QRectF(picture.rect()))
            inner.setRight(inner.right() - _MARK - 4)
        is_selected = bool(state & QStyle.StateFlag.State_Selected)
        weight = QFont.Weight.Medium if is_selected else QFont.Weight.Normal
        title = QRectF(inner.left(), rect.top(), inner.width(), row)
        self._paint_line(painter, title, str(index.data()), 14, weight, tokens.text)
        if index.data(ChatListRole.MESSAGE) is not None:
            below = QRectF(inner.left(), rect.top() + row - 10, inner.width(), hit - row + 4)
            excerpt = str(index.data(ChatListRole.EXCERPT))
            self._paint_line(painter, below, excerpt, 12, QFont.Weight.Normal, tokens.text2)

    def _paint_line(
        self,
        painter: QPainter,
        rect: QRectF,
        text: str,
        pixels: int,
        weight: QFont.Weight,
        color: str,
    ) -> None:
        painter.setFont(self._theme.ui_font(pixels, weight))
        painter.setPen(QColor(color))
        right = Qt.TextElideMode.ElideRight
        shown = painter.fontMetrics().elidedText(text, right, int(rect.width()))
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(rect, flags, shown)
