"""The question before an action that cannot be undone."""

from collections.abc import Callable

from PySide6.QtWidgets import QDialog, QWidget

from potluck_app.views.controls import button, hbox, label, vbox


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
        buttons = hbox(spacing=8)
        buttons.addStretch(1)
        buttons.addWidget(self.no)
        buttons.addWidget(self.yes)
        column = vbox(self, spacing=8)
        column.setContentsMargins(24, 20, 20, 16)
        column.addWidget(label(title, "section", wrap=True))
        column.addWidget(label(text, "body2", wrap=True))
        column.addSpacing(12)
        column.addLayout(buttons)


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
