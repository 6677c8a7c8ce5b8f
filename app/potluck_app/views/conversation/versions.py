"""The switch between the versions of a message: its number, and a step to either side."""

from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import hbox
from potluck_app.views.widgets.controls import IconButton, label


class VersionSwitch(QWidget):
    """Shows which version is shown, and steps to the next ones. Hidden if there is only one."""

    def __init__(self, theme: Theme, on_step: Callable[[int], object]) -> None:
        super().__init__()
        self.previous = IconButton(theme, "chevron-left", "Previous version", "version-previous")
        self.previous.clicked.connect(lambda: on_step(-1))
        self.next = IconButton(theme, "chevron-right", "Next version", "version-next")
        self.next.clicked.connect(lambda: on_step(1))
        self.text = label("", "meta", name="version-place")
        hbox(self.previous, self.text, self.next, parent=self)
        self.hide()

    def show_versions(self, place: int, count: int) -> None:
        """Show that this is the version `place`, from 0, of so many."""
        self.text.setText(f"{place + 1}/{count}")
        self.text.setAccessibleName(f"Version {place + 1} of {count}")
        self.previous.setEnabled(place > 0)
        self.next.setEnabled(place < count - 1)
        self.setVisible(count > 1)
