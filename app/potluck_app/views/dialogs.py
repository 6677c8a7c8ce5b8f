"""The question before an action that cannot be undone."""

from collections.abc import Callable

from PySide6.QtWidgets import QDialog, QWidget

from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.controls import button, label


class Confirmation(QDialog):
    """A title, a sentence, and two buttons that are named after their actions."""

    def __init__(
        self, parent: QWidget, *, title: str, text: str, action: str, keep: str = "Cancel"
    ) -> None:
        super().__init__(parent)
        self.setObjectName("confirmation")
        self.setWindowTitle(title)
        self.setFixedWidth(400)
        self.no = button(keep, "confirmation-no", self.reject)
        self.yes = button(action, "confirmation-yes", self.accept, kind="danger")
        self.no.setDefault(True)
        buttons = hbox(STRETCH, self.no, self.yes, spacing=8)
        vbox(
            label(title, "section", wrap=True),
            label(text, "body2", wrap=True),
            12,
            buttons,
            parent=self,
            margins=(24, 20, 20, 16),
            spacing=8,
        )


def confirm(
    parent: QWidget,
    *,
    title: str,
    text: str,
    action: str,
    on_confirmed: Callable[[], object],
    keep: str = "Cancel",
) -> Confirmation:
    """Ask, without blocking the window."""
    dialog = Confirmation(parent, title=title, text=text, action=action, keep=keep)
    dialog.accepted.connect(lambda: on_confirmed())
    dialog.finished.connect(dialog.deleteLater)
    dialog.open()
    return dialog
