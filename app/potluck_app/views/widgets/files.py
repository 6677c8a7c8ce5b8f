"""The dialog for files. It is the system's own where there is one, and else Qt's, in the looks of the window."""

from typing import Final

from PySide6.QtCore import QFileInfo
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import (
    QComboBox,
    QFileDialog,
    QFileIconProvider,
    QHeaderView,
    QSplitter,
    QToolButton,
    QTreeView,
    QWidget,
)

from potluck_app import resources
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import STRETCH, hbox
from potluck_app.views.widgets.controls import TintedIcon

_WIDTH, _HEIGHT = 860, 520  # pixels, in which the dates of files are not cut
_SIDE, _PLACES = 20, 150  # pixels around all, and of the folders at the side
# Qt's own icons are black, also on a dark window.
_ICONS: Final = {
    "backButton": "chevron-left",
    "forwardButton": "chevron-right",
    "toParentButton": "chevron-up",
    "newFolderButton": "plus",
    "listModeButton": "models",
    "detailModeButton": "list",
}


class _Icons(QFileIconProvider):
    """The icons of folders and files, in the looks of the window."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme

    def icon(self, of: QFileInfo | QFileIconProvider.IconType) -> QIcon:
        kinds = QFileIconProvider.IconType
        if isinstance(of, QFileInfo):
            of = kinds.Folder if of.isDir() else kinds.File
        name = {kinds.File: "file", kinds.Computer: "desktop"}.get(of, "folder")
        return resources.icon(name, self._theme.tokens.text2, 16)


class FileDialog(QFileDialog):
    """Asks for files. It is deleted when it is closed."""

    def __init__(self, theme: Theme, parent: QWidget, title: str) -> None:
        super().__init__(parent, said(title))
        self.resize(theme.px(_WIDTH), theme.px(_HEIGHT))
        self._arrange()
        for box in self.findChildren(QComboBox):
            arrow = TintedIcon(theme, "chevron-down", 16)
            hbox(STRETCH, arrow, parent=box, margins=(0, 0, 10, 0))
        self._icons = _Icons(theme)  # the dialog does not keep it
        self.setIconProvider(self._icons)
        for name, icon in _ICONS.items():
            button = self.findChild(QToolButton, name)  # the system's own dialog has none
            if isinstance(button, QToolButton):
                tokens = theme.tokens
                button.setIcon(
                    resources.icon(icon, tokens.text2, 16, disabled=tokens.border_strong)
                )
        self.finished.connect(self.deleteLater)

    def _arrange(self) -> None:
        """Show all of what is said of a file, and leave the rest to its name."""
        if (layout := self.layout()) is not None:
            layout.setContentsMargins(_SIDE, _SIDE, _SIDE, _SIDE)
        if isinstance(parts := self.findChild(QSplitter, "splitter"), QSplitter):
            parts.setSizes([_PLACES, self.width() - _PLACES])
        if isinstance(files := self.findChild(QTreeView, "treeView"), QTreeView):
            header, mode = files.header(), QHeaderView.ResizeMode
            header.setStretchLastSection(False)
            header.setSectionResizeMode(mode.ResizeToContents)
            header.setSectionResizeMode(0, mode.Stretch)
