"""Dialogs: a column that scrolls where the screen is small, and the buttons below it."""

from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QDialog, QLayout, QWidget

from potluck_app.language import said
from potluck_app.views import screens
from potluck_app.views.boxes import STRETCH, Part, hbox, vbox
from potluck_app.views.controls import button, label, scrolling

_SIDE = 24
_TALLEST = 800  # pixels; what is longer, such as a list of packages, scrolls


class Dialog(QDialog):
    """A dialog as high as its parts, where the screen has room, and 800 pixels at most; its buttons are always in view.

    Args:
        parent: the dialog belongs to its window.
        name: its stable id.
        title: of the window.
        width: pixels, where the screen has them.
    """

    def __init__(self, parent: QWidget, name: str, title: str, width: int = 400) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self.setWindowTitle(said(title))
        self._width = width
        self._inner, self._foot = QWidget(), QWidget()
        self._scroll = scrolling(self._inner, title)
        vbox((self._scroll, 1), self._foot, parent=self)

    def fill(self, *parts: Part, buttons: tuple[QWidget, ...], spacing: int = 8) -> None:
        """Put these parts below each other, and these buttons at the right below them."""
        vbox(*parts, STRETCH, parent=self._inner, margins=(_SIDE, 20, _SIDE, 8), spacing=spacing)
        hbox(STRETCH, *buttons, parent=self._foot, margins=(_SIDE, 8, 20, 16), spacing=8)
        self.fit()

    def fit(self) -> None:
        """Take the height that the parts need now; a dialog does not grow by itself."""
        most = screens.room(self.parentWidget() or self)
        width = min(self._width, most.width())
        height = _height(self._inner.layout(), width) + _height(self._foot.layout(), width)
        shown = min(height, most.height(), _TALLEST)
        self.setFixedSize(width, shown)
        is_cut = height > shown
        policy = Qt.FocusPolicy  # where there is something to scroll to, arrow keys do it
        self._scroll.setFocusPolicy(policy.TabFocus if is_cut else policy.NoFocus)

    def showEvent(self, event: QShowEvent) -> None:
        self.fit()  # the texts have their fonts only now
        super().showEvent(event)


def _height(layout: QLayout | None, width: int) -> int:
    assert layout is not None
    layout.invalidate()
    hint = layout.sizeHint().height()
    return layout.heightForWidth(width) if layout.hasHeightForWidth() else hint


class Confirmation(Dialog):
    """The question before an action. The buttons are named after what they do; red is what cannot be undone."""

    def __init__(
        self,
        parent: QWidget,
        *,
        title: str,
        text: str,
        action: str,
        keep: str = "Cancel",
        kind: Literal["primary", "danger"] = "danger",
    ) -> None:
        super().__init__(parent, "confirmation", title)
        self.no = button(keep, "confirmation-no", self.reject)
        self.yes = button(action, "confirmation-yes", self.accept, kind=kind)
        self.no.setDefault(True)
        self.fill(
            label(title, "section", wrap=True),
            label(text, "body2", wrap=True),
            buttons=(self.no, self.yes),
        )


def confirm(
    parent: QWidget,
    *,
    title: str,
    text: str,
    action: str,
    on_confirmed: Callable[[], object],
    keep: str = "Cancel",
    kind: Literal["primary", "danger"] = "danger",
) -> Confirmation:
    """Ask, without blocking the window. `kind` is that of the button that acts."""
    dialog = Confirmation(parent, title=title, text=text, action=action, keep=keep, kind=kind)
    dialog.accepted.connect(lambda: on_confirmed())
    dialog.finished.connect(dialog.deleteLater)
    dialog.open()
    return dialog
