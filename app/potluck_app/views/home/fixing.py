"""The button of a finding that has the system ask for an administrator, and do what the command says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import shiboken6
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QWidget

from potluck.system import elevation
from potluck.system.elevation import Outcome
from potluck_app.background import Background
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import announce, button, label
from potluck_app.views.widgets.dialogs import Dialog

_SAYS: Final[dict[Outcome, str]] = {
    "done": "Done. The doctor looks again.",
    "refused": "Nobody allowed it, so nothing was changed.",
    "unasked": "Your system has no way to ask here. Copy the command and run it in a terminal.",
    "failed": "It did not work. Copy the command and run it in a terminal: there you see why.",
    "unknown": "Your system has not answered for three minutes, so what came of it is not known. Check again.",
}
_WIDTH: Final = 600  # pixels: of the doctor, whose commands have room in it
_ASKS: Final = "Your system asks for an administrator…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How the system is asked; tests hand in their own."""

    asking: Callable[[str], Sequence[str] | None] = elevation.asking
    run: Callable[[Sequence[str]], Outcome] = elevation.run


MEANS: Final = Means()


class FixQuestion(Dialog):
    """What is about to be run, word for word. Nothing is run before a click."""

    def __init__(self, parent: QWidget, words: Sequence[str]) -> None:
        super().__init__(parent, "fix-question", "Let Potluck through the firewall?", _WIDTH)
        text = "Your system asks for the password of an administrator. Then this is run, once, and nothing else:"
        self.command = label(elevation.shown(words), "mono", wrap=True, is_quoted=True)
        self.command.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.no = button("Cancel", "fix-no", self.reject)
        self.yes = button("Ask the system", "fix-yes", self.accept, kind="primary")
        self.no.setDefault(True)
        self.fill(
            label("Let Potluck through the firewall?", "section", wrap=True),
            label(text, "body2", wrap=True),
            self.command,
            buttons=(self.no, self.yes),
        )


class Fixing(QObject):
    """Has the system do what one finding needs. Its row is made anew when the doctor looks again meanwhile.

    Attributes:
        words: what is run.
        line: what came of it, or what is waited for.
        is_running: whether the system asks just now.
        is_done: whether it was done.

    Signals:
        changed: something of this is other.
        fixed: it was done, so the doctor may look again.
    """

    changed = Signal()
    fixed = Signal()

    def __init__(
        self, words: Sequence[str], window: QWidget, means: Means, parent: QObject
    ) -> None:
        """`words` are run by `means`; `window` lives longer than this."""
        super().__init__(parent)
        self.words, self.line = words, ""
        self.is_running = self.is_done = False
        self._window, self._means = window, means

    def run(self) -> None:
        """Ask, unless it is asked already."""
        if self.is_running:
            return
        self.is_running, self.line = True, _ASKS
        self.changed.emit()
        thread = Background("fix", self._window)  # the person looks for the password

        def end(outcome: Outcome) -> None:
            thread.close(timeout_s=0)
            thread.deleteLater()
            if shiboken6.isValid(self):
                self._end(outcome)

        thread.run(lambda: self._means.run(self.words), end, lambda _error: end("failed"))

    def _end(self, outcome: Outcome) -> None:
        self.is_running, self.is_done, self.line = False, outcome == "done", _SAYS[outcome]
        self.changed.emit()
        if self.is_done:
            self.fixed.emit()


class FixRow(QWidget):
    """The button, and what came of it."""

    def __init__(self, fixing: Fixing) -> None:
        super().__init__()
        self.fixing = fixing
        self.button = button("Fix…", "doctor-fix", self._ask)
        self.line = label("", "meta", wrap=True)
        vbox(hbox(self.button, (self.line, 1), spacing=8), parent=self)
        self._show()
        fixing.changed.connect(self._changed)

    def _ask(self) -> None:
        question = FixQuestion(self.window(), self.fixing.words)
        question.accepted.connect(self.fixing.run)
        question.finished.connect(question.deleteLater)
        question.open()

    def _changed(self) -> None:
        self._show()
        announce(self, self.fixing.line)

    def _show(self) -> None:
        self.button.setEnabled(not (self.fixing.is_running or self.fixing.is_done))
        self.line.setText(self.fixing.line)
