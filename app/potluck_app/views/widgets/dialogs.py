"""Dialogs: a column that scrolls where the screen is small, and the buttons below it."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractSlider,
    QApplication,
    QDialog,
    QLayout,
    QLineEdit,
    QPushButton,
    QWidget,
)

from potluck_app.language import said
from potluck_app.theme import USUAL_TEXT
from potluck_app.views.widgets import screens
from potluck_app.views.widgets.boxes import STRETCH, Part, hbox, vbox
from potluck_app.views.widgets.controls import button, label, scrolling

Kind: TypeAlias = Literal["primary", "danger"]
_SIDE = 24
_SCROLLS = {
    Qt.Key.Key_PageUp: QAbstractSlider.SliderAction.SliderPageStepSub,
    Qt.Key.Key_PageDown: QAbstractSlider.SliderAction.SliderPageStepAdd,
    Qt.Key.Key_Home: QAbstractSlider.SliderAction.SliderToMinimum,
    Qt.Key.Key_End: QAbstractSlider.SliderAction.SliderToMaximum,
}
_TALLEST = 800  # pixels; what is longer, such as a list of packages, scrolls


class Dialog(QDialog):
    """A dialog as high as its parts, where the screen has room, and 800 pixels at most; its buttons are always in view.

    Args:
        parent: the dialog belongs to its window.
        name: its stable id.
        title: of the window.
        width: pixels at the usual size of text, where the screen has them; more where its buttons need more.
    """

    def __init__(self, parent: QWidget, name: str, title: str, width: int = 400) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self.setWindowTitle(said(title))
        grown = QApplication.font().pixelSize() / USUAL_TEXT  # with larger text
        self._width = round(width * max(grown, 1.0))
        self._inner, self._foot = QWidget(), QWidget()
        self._last: QWidget | None = None  # the button that closes it
        self._scroll = scrolling(self._inner, title)
        vbox((self._scroll, 1), self._foot, parent=self)

    def fill(self, *parts: Part, buttons: tuple[QWidget, ...], spacing: int = 8) -> None:
        """Put these parts below each other, and these buttons at the right below them."""
        vbox(*parts, STRETCH, parent=self._inner, margins=(_SIDE, 20, _SIDE, 8), spacing=spacing)
        hbox(STRETCH, *buttons, parent=self._foot, margins=(_SIDE, 8, _SIDE, 20), spacing=8)
        self._last = buttons[-1]
        self.fit()

    def fit(self) -> None:
        """Take the height that the parts need now; a dialog does not grow by itself."""
        most = screens.room(self.parentWidget() or self)
        buttons = self._foot.layout()
        wanted = max(self._width, buttons.sizeHint().width() if buttons is not None else 0)
        width = min(wanted, most.width())
        height = _height(self._inner.layout(), width) + _height(self._foot.layout(), width)
        shown = min(height, most.height(), _TALLEST)
        self.setFixedSize(width, shown)
        is_cut = height > shown
        policy = Qt.FocusPolicy  # where there is something to scroll to, arrow keys do it
        self._scroll.setFocusPolicy(policy.TabFocus if is_cut else policy.NoFocus)

    def showEvent(self, event: QShowEvent) -> None:
        self.fit()  # the texts have their fonts only now
        super().showEvent(event)
        self._begin()

    def _begin(self) -> None:
        """Give the focus to the field to type in, else to the default button, else to the one that closes."""
        fields = [each for each in self.findChildren(QLineEdit) if not each.isReadOnly()]
        defaults = [each for each in self.findChildren(QPushButton) if each.isDefault()]
        for widget in (*fields, *defaults, self._last):
            if widget is not None and widget.isVisibleTo(self):
                widget.setFocus()
                return

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Scroll with the keys for that, wherever the focus is."""
        bar = self._scroll.verticalScrollBar()
        action = _SCROLLS.get(Qt.Key(event.key()))
        if action is None:
            super().keyPressEvent(event)
        else:
            bar.triggerAction(action)


def _height(layout: QLayout | None, width: int) -> int:
    assert layout is not None
    layout.invalidate()
    hint = layout.sizeHint().height()
    return layout.heightForWidth(width) if layout.hasHeightForWidth() else hint


class Confirmation(Dialog):
    """The question before an action. The buttons are named after what they do.

    Args:
        parent: the window that it belongs to.
        title: the question.
        text: what happens.
        action: the button that does it.
        keep: the other one.
        kind: of the first; danger: it cannot be undone, or takes something away.
    """

    def __init__(
        self,
        parent: QWidget,
        *,
        title: str,
        text: str,
        action: str,
        keep: str = "Cancel",
        kind: Kind = "danger",
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
    kind: Kind = "danger",
) -> Confirmation:
    """Ask, without blocking the window."""
    dialog = Confirmation(parent, title=title, text=text, action=action, keep=keep, kind=kind)
    dialog.accepted.connect(lambda: on_confirmed())
    dialog.finished.connect(dialog.deleteLater)
    dialog.open()
    return dialog
