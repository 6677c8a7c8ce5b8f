"""The list of conversations beside the chat."""

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPoint, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QFont, QPainter
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QInputDialog,
    QLineEdit,
    QListView,
    QMenu,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from potluck_app import resources
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole
from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.controls import ButtonIcon, ElidedLabel, TintedIcon, button, card_frame

WIDTH = 250
_ROW, _FIRST_HEADING, _HEADING = 33, 26, 44
_UNDO_MS = 8000


class _RowDelegate(QStyledItemDelegate):
    """Draws headings and conversations."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme

    def sizeHint(
        self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> QSize:
        if index.data(ChatListRole.ID) is not None:
            return QSize(100, _ROW)
        return QSize(100, _FIRST_HEADING if index.row() == 0 else _HEADING)

    def paint(
        self,
        painter: QPainter,
        option: QStyleOptionViewItem,
        index: QModelIndex | QPersistentModelIndex,
    ) -> None:
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
            painter.drawText(bottom, flags, index.data())
        else:
            self._paint_row(painter, rect, state, str(index.data()))
        painter.restore()

    def _paint_row(
        self, painter: QPainter, rect: QRectF, state: QStyle.StateFlag, title: str
    ) -> None:
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
        font = self._theme.ui_font(14, QFont.Weight.Medium if is_selected else QFont.Weight.Normal)
        painter.setFont(font)
        painter.setPen(QColor(tokens.text))
        inner = rect.adjusted(13, 0, -10, 0)
        metrics = painter.fontMetrics()
        text = metrics.elidedText(title, Qt.TextElideMode.ElideRight, int(inner.width()))
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(inner, flags, text)


class ChatSidebar(QFrame):
    """New chat, search, and the conversations by age."""

    def __init__(self, theme: Theme, chat: Chat) -> None:
        super().__init__()
        self.setProperty("side", "true")
        self.setFixedWidth(WIDTH)
        self._theme, self._chat = theme, chat
        self.new = button("New chat", "chat-new", chat.new, kind="primary")
        ButtonIcon(self.new, theme, "plus", lambda: theme.tokens.accent_on)
        self.search = QLineEdit()
        self.search.setObjectName("chat-search")
        self.search.setAccessibleName("Search chats")
        self.search.setPlaceholderText("Search chats")
        self.search.setClearButtonEnabled(True)
        self.search.textChanged.connect(chat.list.search)
        self.search.setTextMargins(24, 0, 0, 0)
        hbox(TintedIcon(theme, "search", 16), STRETCH, parent=self.search, margins=(11, 0, 0, 0))
        self.list = self._make_list()
        self._undo = self._make_undo()
        vbox(
            self.new,
            self.search,
            (self.list, 1),
            self._undo,
            parent=self,
            margins=(12, 14, 11, 12),
            spacing=6,
        )
        chat.shown_changed.connect(self._select_shown)
        chat.list.modelReset.connect(self._select_shown)
        chat.deleted.connect(self._offer_undo)

    def _make_list(self) -> QListView:
        view = QListView()
        view.setObjectName("chat-list")
        view.setAccessibleName("Chats")
        view.setModel(self._chat.list)
        view.setItemDelegate(_RowDelegate(self._theme))
        view.setMouseTracking(True)
        view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._open_menu)
        view.clicked.connect(self._open_row)
        view.activated.connect(self._open_row)
        return view

    def _make_undo(self) -> QFrame:
        frame = card_frame()
        self._undo_text = ElidedLabel("", "meta")
        undo = button("Undo", "chat-undo", self._on_undo)
        hbox((self._undo_text, 1), undo, parent=frame, margins=(12, 6, 6, 6), spacing=8)
        frame.hide()
        self._undo_timer = QTimer(self, singleShot=True, interval=_UNDO_MS)
        self._undo_timer.timeout.connect(frame.hide)
        return frame

    def _select_shown(self) -> None:
        index = self._chat.list.index_of(self._chat.shown_id)
        if index.isValid():
            self.list.setCurrentIndex(index)
        else:
            self.list.clearSelection()
            self.list.setCurrentIndex(QModelIndex())

    def _open_row(self, index: QModelIndex) -> None:
        conversation_id = index.data(ChatListRole.ID)
        if conversation_id is not None:
            self._chat.open(conversation_id)

    def menu_for(self, index: QModelIndex) -> QMenu:
        """Return the menu of a conversation."""
        conversation_id, title = index.data(ChatListRole.ID), str(index.data())
        tokens = self._theme.tokens
        menu = QMenu(self)
        menu.setAccessibleName("Chat")
        menu.aboutToHide.connect(menu.deleteLater)
        rename = menu.addAction(resources.icon("edit", tokens.text2, 16), "Rename…")
        rename.triggered.connect(lambda: self._rename(conversation_id, title))
        delete = menu.addAction(resources.icon("trash", tokens.text2, 16), "Delete")
        delete.triggered.connect(lambda: self._chat.delete(conversation_id))
        return menu

    def _open_menu(self, position: QPoint) -> None:
        index = self.list.indexAt(position)
        if index.isValid() and index.data(ChatListRole.ID) is not None:
            self.menu_for(index).popup(self.list.viewport().mapToGlobal(position))

    def _rename(self, conversation_id: str, title: str) -> None:
        dialog = QInputDialog(self)
        dialog.setWindowTitle("Rename chat")
        dialog.setLabelText("Title")
        dialog.setTextValue(title)
        dialog.resize(380, dialog.sizeHint().height())
        dialog.textValueSelected.connect(lambda text: self._chat.rename(conversation_id, text))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _offer_undo(self, title: str) -> None:
        self._undo_text.set_text(f"Deleted: {title}")
        self._undo.show()
        self._undo_timer.start()

    def _on_undo(self) -> None:
        self._undo.hide()
        self._chat.undelete()
