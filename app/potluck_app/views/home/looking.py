"""What the Cluster page shows while no other computer is there: how to start one, then what to do."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QWidget

from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import TintedIcon, announce, button, label
from potluck_app.views.widgets.flow import Flow

_TITLE, _TEXT = (
    "Looking for your computers",
    "Start Potluck on another computer of this network and choose “Share this computer”. It appears"
    " here by itself.",
)
_NOTHING, _NOTHING_TEXT = (
    "Nothing found?",
    "Potluck is still looking, and no other computer has answered yet. Is Potluck started on the other"
    " one, and is that one shared? If so, let the doctor find out what is in the way, or enter its"
    " address.",
)


class Looking(QFrame):
    """The search for other computers.

    Args:
        theme: of the window.
        on_again: the person wants to look again, now.
        on_doctor: the person wants to know why nothing is found.
        on_address: the person wants to enter the address of a computer.
    """

    def __init__(
        self,
        theme: Theme,
        on_again: Callable[[], object],
        on_doctor: Callable[[], object],
        on_address: Callable[[], object],
    ) -> None:
        super().__init__()
        self.setObjectName("cluster-looking")
        self.setProperty("card", "true")
        self.title = label(_TITLE, "section")
        self.text = label(_TEXT, "body2", wrap=True)
        self.again = button("Look again", "cluster-again", on_again)
        self.doctor = button("Find out why", "cluster-doctor", on_doctor)
        self.address = button("Enter its address", "cluster-address", on_address)
        self._ways = QWidget()
        ways = Flow(self._ways)
        for way in (self.again, self.doctor, self.address):
            ways.addWidget(way)
        self._ways.hide()
        icon = TintedIcon(theme, "search", 24, lambda: theme.tokens.accent)
        texts = vbox(self.title, self.text, 2, self._ways, spacing=4)
        hbox(
            (icon, 0, Qt.AlignmentFlag.AlignTop),
            (texts, 1),
            parent=self,
            margins=(18, 16, 18, 16),
            spacing=14,
        )

    def show_search(self, *, has_ended: bool) -> None:
        """Show that computers are looked for or, after ten seconds without one, what can be done."""
        if has_ended != self._ways.isHidden():
            return
        self.title.setText(_NOTHING if has_ended else _TITLE)
        self.text.setText(_NOTHING_TEXT if has_ended else _TEXT)
        self._ways.setVisible(has_ended)
        if has_ended:
            announce(self, f"{_NOTHING} {_NOTHING_TEXT}")
