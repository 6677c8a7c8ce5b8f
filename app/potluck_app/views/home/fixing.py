"""The button of a finding that has the system ask for an administrator, and do what the command says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import shiboken6
from PySide6.QtCore import Qt, Signal
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
    "failed": "It did not work. Copy the command and run it in a terminal: there you see why.",
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


class FixRow(QWidget):
    """The button, and what came of it.

    Signals:
        fixed: it was done, so the doctor may look again.
    """

    fixed = Signal()

    def __init__(self, words: Sequence[str], window: QWidget, means: Means) -> None:
        """`words` are run by `means`; `window` lives longer than this row."""
        super().__init__()
        self._words, self._window, self._means = words, window, means
        self.button = button("Fix…", "doctor-fix", self._ask)
        self.line = label("", "meta", wrap=True)
        vbox(hbox(self.button, (self.line, 1), spacing=8), parent=self)

    def _ask(self) -> None:
        question = FixQuestion(self, self._words)
        question.accepted.connect(self._run)
        question.finished.connect(question.deleteLater)
        question.open()

    def _run(self) -> None:
        self.button.setEnabled(False)
        self._say(_ASKS)
        thread = Background("fix", self._window)  # the person looks for the password

        def end(outcome: Outcome) -> None:
            thread.close(timeout_s=0)
            thread.deleteLater()
            if shiboken6.isValid(self):
                self.button.setEnabled(outcome != "done")
                self._say(_SAYS[outcome])
                if outcome == "done":
                    self.fixed.emit()

        thread.run(lambda: self._means.run(self._words), end, lambda _error: end("failed"))

    def _say(self, text: str) -> None:
        self.line.setText(text)
        announce(self, text)
