"""The picker at the top of a chat: which model answers, and a menu of those that can."""

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QMenu, QSizePolicy

from potluck_app import resources, wording
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.library import Library
from potluck_app.viewmodels.model_rows import ModelRow
from potluck_app.views.widgets.words import Menu, ToolButton

_NAME_LENGTH = 40
_LEAST = 72  # pixels
_AROUND = 44  # pixels that a picker has beside its words: borders, the arrow, and what is between


class ModelPicker(ToolButton):
    """Says which model answers. Its menu lists the models, the one in use first; choosing loads one."""

    def __init__(self, theme: Theme, library: Library, open_models: Callable[[], object]) -> None:
        super().__init__()
        self._theme, self._library, self._open_models = theme, library, open_models
        self.setObjectName("chat-model")
        self.setProperty("kind", "picker")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setLayoutDirection(Qt.LayoutDirection.RightToLeft)  # the arrow follows the text
        self._shown = ""
        self._menu: QMenu | None = None  # while it is open
        self._listed: tuple[ModelRow, ...] | None = None
        self.clicked.connect(self.open)
        library.changed.connect(self._fill)
        theme.changed.connect(self._tint)
        self._tint()

    def _tint(self) -> None:
        self.setIcon(resources.icon("chevron-down", self._theme.tokens.text2, 16))

    def minimumSizeHint(self) -> QSize:
        return QSize(_LEAST, super().minimumSizeHint().height())

    def show_model(self, name: str, where: str, *, is_short: bool = False) -> None:
        """Show which model answers, and if there is room, on which computers; "": it runs on none yet."""
        self._shown = name if is_short or not where else f"{name} · {_on(where)}"
        self.setText(wording.without_mnemonic(self._shown))
        answers = f"{name}, on {where}" if where else name
        self.setAccessibleName(f"Model: {answers}. Choose another")

    def needed_width(self, name: str, where: str) -> int:
        """How many pixels this model takes, with the computers on which it runs, or "" without them."""
        self.ensurePolished()
        text = said(f"{name} · {_on(where)}" if where else name)
        return self.fontMetrics().horizontalAdvance(text) + 1 + _AROUND  # as Qt rounds it

    def fit(self, width: int) -> None:
        """Take no more than this width: what does not fit ends in an ellipsis."""
        room, whole = width - _AROUND, said(self._shown)
        text = self.fontMetrics().elidedText(whole, Qt.TextElideMode.ElideRight, room)
        self.setText(wording.without_mnemonic(self._shown if text == whole else text))

    def open(self) -> None:
        """Open the menu."""
        self.menu().popup(self.mapToGlobal(self.rect().bottomLeft()))

    def menu(self) -> QMenu:
        """Return the menu of the models, and ask for them anew."""
        menu = Menu(self)
        menu.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
        menu.setAccessibleName("Models")
        menu.aboutToHide.connect(menu.deleteLater)
        menu.aboutToHide.connect(self._forget)
        self._menu = menu
        self._fill()
        self._library.refresh_models()
        return menu

    def _forget(self) -> None:
        self._menu = None

    def _fill(self) -> None:
        menu, rows = self._menu, self._library.models
        if menu is None or (menu.actions() and rows == self._listed):
            return  # what is marked in an open menu stays
        self._listed = rows
        menu.clear()
        for row in rows or ():
            self._add(menu, row)
        if rows is None:
            menu.addAction("Looking for models…").setEnabled(False)
        menu.addSeparator()
        more = menu.addAction("Get more models…")
        more.triggered.connect(lambda: self._open_models())

    def _add(self, menu: QMenu, row: ModelRow) -> None:
        name = row.name
        if len(name) > _NAME_LENGTH:
            name = f"{name[:_NAME_LENGTH]}…"
        speed = f"\t{row.speed}" if row.speed else ""
        action = menu.addAction(f"{wording.without_mnemonic(name)}{speed}")
        action.setCheckable(True)
        action.setChecked(row.in_use)
        action.setEnabled(row.in_use or row.can_be_used)
        if not row.in_use:
            action.triggered.connect(lambda: self._library.use(row.path))


def _on(where: str) -> str:
    """Say where it runs without a sentence around it."""
    return "on this computer" if where == "this computer" else where
