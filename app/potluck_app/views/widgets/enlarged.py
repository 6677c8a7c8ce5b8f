"""A picture of a message over the whole window, as large as fits and no larger than it is."""

import base64
from pathlib import Path

import shiboken6
from PySide6.QtCore import QEvent, QObject, QRect, Qt
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QGuiApplication,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
)
from PySide6.QtWidgets import QApplication, QFileDialog, QMenu, QWidget

from potluck.files import write_atomically
from potluck.reasons import reason
from potluck_app.background import Background
from potluck_app.chats.attachments import size
from potluck_app.chats.values import Attachment
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.controls import IconButton, announce, label
from potluck_app.views.widgets.files import FileDialog
from potluck_app.views.widgets.pictures import file_name, whole
from potluck_app.views.widgets.words import Described, Menu

_SIDE, _ABOVE, _BELOW = 16, 48, 44  # pixels between the picture and the edges of the window
_CLOSING = (Qt.Key.Key_Escape, Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space)


class Enlarged(Described, QWidget):
    """Shows a picture until a click, Esc, Enter or Space, or until the focus goes elsewhere."""

    def __init__(self, theme: Theme, attachment: Attachment, window: QWidget) -> None:
        super().__init__(window)
        self._theme, self._attachment = theme, attachment
        self._before = QApplication.focusWidget()
        self._picture = whole(attachment.picture)
        name = attachment.name
        self.setObjectName("enlarged")
        self.setAccessibleName(f"Enlarged picture: {name}")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.close_button = IconButton(theme, "close", "Close the picture", "enlarged-close")
        self.close_button.clicked.connect(self.leave)
        self.caption = label(f"{name} · {size(attachment.nbytes)}", "meta", wrap=True)
        self.caption.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        top = hbox(STRETCH, self.close_button)
        vbox(top, STRETCH, self.caption, parent=self, margins=(_SIDE, 8, 8, 12))
        window.installEventFilter(self)
        QApplication.instance().focusChanged.connect(self._on_focus)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        self.setGeometry(window.rect())
        self.show()
        self.raise_()
        self.setFocus()

    def leave(self) -> None:
        """Close it; what had the focus has it again."""
        if self.isHidden():
            return
        has_focus = self._has(QApplication.focusWidget())
        self.hide()
        self.deleteLater()
        before = self._before
        if has_focus and before is not None and shiboken6.isValid(before):
            before.setFocus()

    def place(self) -> QRect:
        """Where the picture is: in the middle, and each of its pixels at most one of the screen's."""
        room = self.rect().adjusted(_SIDE, _ABOVE, -_SIDE, -_BELOW)
        shown = self._picture.size() / self.devicePixelRatioF()
        if shown.width() > room.width() or shown.height() > room.height():
            shown.scale(room.size(), Qt.AspectRatioMode.KeepAspectRatio)
        place = QRect(room.topLeft(), shown)
        place.moveCenter(room.center())
        return place

    def menu(self) -> QMenu:
        """Return the menu of the picture."""
        menu = Menu(self)
        menu.setAccessibleName("Picture")
        menu.aboutToHide.connect(menu.deleteLater)
        copy = menu.addAction("Copy")
        copy.triggered.connect(lambda: QGuiApplication.clipboard().setPixmap(self._picture))
        menu.addAction("Save as…").triggered.connect(self.choose_place)
        return menu

    def choose_place(self) -> None:
        """Ask where to save the picture."""
        dialog = FileDialog(self._theme, self, "Save as…")
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.selectFile(file_name(self._attachment))
        dialog.fileSelected.connect(lambda path: self.save(Path(path)))
        dialog.open()

    def save(self, path: Path) -> None:
        """Write the picture into a file, and say so."""
        data, name = base64.b64decode(self._attachment.picture), self._attachment.name
        thread = Background("picture", self.window())  # the file may be on a slow drive

        def end(text: str) -> None:
            thread.close(timeout_s=0)
            thread.deleteLater()
            if shiboken6.isValid(self):
                self.caption.setText(text)
                announce(self, text)

        thread.run(
            lambda: write_atomically(path, data),
            lambda _result: end(f"“{name}” was saved as {path}."),
            lambda error: end(f"{path} could not be written: {reason(error)}."),
        )

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.key() in _CLOSING:
            if event.type() == QEvent.Type.ShortcutOverride:
                event.accept()  # else the window takes Esc, to stop a reply
                return True
            if event.type() == QEvent.Type.KeyPress:
                self.leave()
                return True
        return super().event(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize and isinstance(watched, QWidget):
            self.setGeometry(watched.rect())
        return False

    def focusNextPrevChild(self, _next: bool) -> bool:
        """Keep the Tab key in the picture, which covers all else."""
        (self.close_button if self.hasFocus() else self).setFocus(Qt.FocusReason.TabFocusReason)
        return True

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.leave()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        self.menu().popup(event.globalPos())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform)
        painter.fillRect(self.rect(), QColor(self._theme.tokens.bg))
        painter.drawPixmap(self.place(), self._picture)
        painter.end()

    def _has(self, widget: QWidget | None) -> bool:
        return widget is not None and (widget is self or self.isAncestorOf(widget))

    def _on_focus(self, _old: QWidget | None, new: QWidget | None) -> None:
        # A menu or a dialog of its own is another window.
        if new is not None and new.window() is self.window() and not self._has(new):
            self.leave()
