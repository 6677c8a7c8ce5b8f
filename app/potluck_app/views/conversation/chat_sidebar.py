"""The list of conversations beside the chat, and the search in them."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QModelIndex, QPoint, Qt
from PySide6.QtGui import QIcon, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QFileDialog, QFrame, QLineEdit, QListView, QMenu

from potluck_app import resources, wording
from potluck_app.chats.exchange import Form
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.viewmodels.chat_list import ChatListRole
from potluck_app.views.conversation.chat_row import ChatRowDelegate
from potluck_app.views.options.shortcuts import shown
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.controls import (
    ButtonIcon,
    IconButton,
    TintedIcon,
    announce,
    button,
    label,
)
from potluck_app.views.widgets.files import FileDialog
from potluck_app.views.widgets.toast import Toast
from potluck_app.views.widgets.words import Line, Menu

WIDTH = 250
_FORMS: tuple[tuple[Form, str, str], ...] = (
    ("md", "Export as Markdown…", "Markdown (*.md)"),
    ("json", "Export as JSON…", "JSON (*.json)"),
)


class ChatSidebar(QFrame):
    """New chat, search, and the conversations by age."""

    def __init__(self, theme: Theme, chat: Chat) -> None:
        super().__init__()
        self.setProperty("side", "true")
        self._theme, self._chat = theme, chat
        self.new = button("New chat", "chat-new", chat.new, kind="primary")
        ButtonIcon(self.new, theme, "plus", lambda: theme.tokens.accent_on)
        self.importing = IconButton(theme, "import", "Import a chat", "chat-import")
        self.importing.clicked.connect(self.choose_import)
        self.fold = IconButton(theme, "list", "Hide chats", "chat-list-hide")
        self.fold.setToolTip(f"Hide chats ({shown('Ctrl+B')})")
        self.search = self._make_search()
        self.nothing = label("", "body2", wrap=True, name="chat-nothing")
        self.nothing.hide()
        self.list = self._make_list()
        self.toast = Toast("chat-undo", chat.undelete, chat.forget_deleted)
        vbox(
            hbox((self.new, 1), self.importing, self.fold, spacing=4),
            self.search,
            self.nothing,
            (self.list, 1),
            self.toast,
            parent=self,
            margins=(12, 14, 11, 12),
            spacing=6,
        )
        theme.changed.connect(self.list.scheduleDelayedItemsLayout)  # rows are as high as text
        chat.shown_changed.connect(self._select_shown)
        chat.list.modelReset.connect(self._select_shown)
        chat.deleted.connect(self._on_deleted)
        chat.said.connect(self.toast.say)
        chat.found.connect(self._on_found)

    def _make_search(self) -> QLineEdit:
        search = Line()
        search.setObjectName("chat-search")
        search.setAccessibleName("Search chats")
        search.setPlaceholderText("Search chats")
        search.setClearButtonEnabled(True)
        search.textChanged.connect(self._chat.search)
        search.returnPressed.connect(self._open_first)
        search.setTextMargins(24, 0, 0, 0)
        hbox(TintedIcon(self._theme, "search", 16), STRETCH, parent=search, margins=(11, 0, 0, 0))
        return search

    def _make_list(self) -> QListView:
        view = QListView()
        view.setObjectName("chat-list")
        view.setAccessibleName(said("Chats"))
        view.setModel(self._chat.list)
        view.setItemDelegate(ChatRowDelegate(self._theme))
        view.setMouseTracking(True)
        view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        view.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed)  # F2
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._open_menu)
        view.clicked.connect(self._open_row)
        view.activated.connect(self._open_row)
        delete = QShortcut(QKeySequence.StandardKey.Delete, view)
        delete.setContext(Qt.ShortcutContext.WidgetShortcut)
        delete.activated.connect(self._delete_current)
        return view

    def _select_shown(self) -> None:
        index = self._chat.list.index_of(self._chat.shown_id)
        if index.isValid():
            self.list.setCurrentIndex(index)
        else:
            self.list.clearSelection()
            self.list.setCurrentIndex(QModelIndex())

    def _on_deleted(self, what: str) -> None:
        self.toast.offer(f"Deleted: {what}")

    def _on_found(self, count: int) -> None:
        searched = self._chat.searched
        self.nothing.setVisible(count == 0)
        if count == 0:
            self.nothing.setText(f"No chat contains “{searched}”. Try fewer or shorter words.")
            announce(self, self.nothing.text())
        elif count > 0:
            announce(self, wording.plural(count, "result", "results"))

    def _open_first(self) -> None:
        for row in range(self._chat.list.rowCount()):
            index = self._chat.list.index(row)
            if self.search.text().strip() and index.data(ChatListRole.ID) is not None:
                self._open_row(index)
                return

    def _open_row(self, index: QModelIndex) -> None:
        chat = index.data(ChatListRole.ID)
        if chat is not None:
            self._chat.open(chat, index.data(ChatListRole.MESSAGE), self._chat.searched)

    def _delete_current(self) -> None:
        chat = self.list.currentIndex().data(ChatListRole.ID)
        if chat is not None:
            self._chat.delete(chat)

    def menu_for(self, index: QModelIndex) -> QMenu:
        """Return the menu of a conversation."""
        chat = index.data(ChatListRole.ID)
        menu = Menu(self)
        menu.setAccessibleName("Chat")
        menu.aboutToHide.connect(menu.deleteLater)
        is_pinned = bool(index.data(ChatListRole.PINNED))
        pin = menu.addAction(self._icon("pin"), "Unpin" if is_pinned else "Pin")
        pin.triggered.connect(lambda: self._chat.pin(chat, not is_pinned))
        if index.flags() & Qt.ItemFlag.ItemIsEditable:
            rename = menu.addAction(self._icon("edit"), "Rename")
            rename.triggered.connect(lambda: self._edit(chat))
        for form, text, kinds in _FORMS:
            export = menu.addAction(self._icon("export"), text)
            export.triggered.connect(self._exporter(chat, form, kinds))
        menu.addSeparator()
        delete = menu.addAction(self._icon("trash"), "Delete")
        delete.triggered.connect(lambda: self._chat.delete(chat))
        return menu

    def _icon(self, name: str) -> QIcon:
        return resources.icon(name, self._theme.tokens.text2, 16)

    def _open_menu(self, position: QPoint) -> None:
        index = self.list.indexAt(position)
        if index.isValid() and index.data(ChatListRole.ID) is not None:
            self.menu_for(index).popup(self.list.viewport().mapToGlobal(position))

    def _edit(self, chat: str) -> None:
        index = self._chat.list.index_of(chat)
        self.list.setCurrentIndex(index)
        self.list.edit(index)

    def _exporter(self, chat: str, form: Form, kinds: str) -> Callable[[], None]:
        return lambda: self._export(chat, form, kinds)

    def _export(self, chat: str, form: Form, kinds: str) -> None:
        summary = self._chat.list.get(chat)
        title = summary.title if summary else "Chat"
        name = "".join(c if c.isalnum() or c in " -_" else "_" for c in title).strip() or "Chat"
        dialog = self._file_dialog("Export chat", kinds)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(form)
        dialog.selectFile(f"{name}.{form}")
        dialog.fileSelected.connect(lambda path: self._chat.export(chat, Path(path), form))
        dialog.open()

    def choose_import(self) -> None:
        """Ask for a file with a chat."""
        dialog = self._file_dialog("Import a chat", "Chats (*.json *.md)")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(lambda path: self._chat.import_file(Path(path)))
        dialog.open()

    def _file_dialog(self, title: str, kinds: str) -> QFileDialog:
        dialog = FileDialog(self._theme, self, title)
        dialog.setNameFilter(kinds)
        return dialog
