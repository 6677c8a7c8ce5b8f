"""A short line at the bottom of a list: what was done, and for some seconds a way back."""

from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QFrame

from potluck_app.views.widgets.boxes import STRETCH, vbox
from potluck_app.views.widgets.controls import ElidedLabel, announce, button
from potluck_app.views.widgets.folding import Folding

_SHOWN_MS = 8000
_LEAST_HEIGHT = 44  # pixels, also without a button


class Toast(QFrame):
    """One line with an Undo button. It goes after some seconds."""

    def __init__(
        self,
        name: str,
        on_undo: Callable[[], object],
        on_gone: Callable[[], object],
        shown_ms: int = _SHOWN_MS,
    ) -> None:
        """`on_gone` is called when the way back ends, also after an undo."""
        super().__init__()
        self.setProperty("card", "true")
        self._on_undo, self._on_gone = on_undo, on_gone
        self.text = ElidedLabel("", "meta")
        self.undo = button("Undo", name, self._undone)
        row = Folding(self.text, self.undo, self.text.needed_width)
        vbox(STRETCH, row, STRETCH, parent=self, margins=(12, 8, 8, 8))
        self.setMinimumHeight(_LEAST_HEIGHT)
        self._timer = QTimer(self, singleShot=True, interval=shown_ms)
        self._timer.timeout.connect(self._go)
        self.hide()

    def offer(self, text: str) -> None:
        """Show this line for some seconds, with Undo."""
        self._show(text, can_undo=True)

    def say(self, text: str) -> None:
        """Show this line for some seconds."""
        self._show(text, can_undo=False)

    def _show(self, text: str, *, can_undo: bool) -> None:
        self.text.set_text(text)
        self.undo.setVisible(can_undo)
        announce(self, text)
        self.show()
        self._timer.start()

    def _undone(self) -> None:
        self._timer.stop()
        self._on_undo()
        self._go()

    def _go(self) -> None:
        self.hide()
        self._on_gone()
