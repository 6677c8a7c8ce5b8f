"""The check box that lets Potluck start with the computer."""

from collections.abc import Callable

from PySide6.QtGui import QShowEvent

from potluck.errors import UsageError
from potluck.system.autostart import Autostart
from potluck_app import wording
from potluck_app.views.widgets.check_box import CheckBox


class StartBox(CheckBox):
    """Shows what the system says, and changes it. Hidden until there is something to change."""

    def __init__(self) -> None:
        super().__init__("Start with the computer", "start-with-computer")
        self.setToolTip(wording.tip("Potluck starts hidden, with its icon in the tray."))
        self._autostart: Autostart | None = None
        self._on_problem: Callable[[str], object] = lambda _: None
        self.clicked.connect(self._set)
        self.hide()

    def offer(self, autostart: Autostart, on_problem: Callable[[str], object]) -> None:
        """Show the box; `on_problem` is told why it could not be changed."""
        self._autostart, self._on_problem = autostart, on_problem
        self.setChecked(autostart.is_on)
        self.show()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._autostart is not None:
            self.setChecked(self._autostart.is_on)  # the system's own settings may have changed it

    def _set(self, on: bool) -> None:
        assert self._autostart is not None
        try:
            self._autostart.set(on)
        except UsageError as error:
            self._on_problem(error.message)
        self.setChecked(self._autostart.is_on)
