"""The doctor: what keeps the computers apart, each with one sentence and one thing to do."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QWidget

from potluck_app.backend import Backend
from potluck_app.theme import Theme
from potluck_app.viewmodels.doctor import Doctor, FindingRow
from potluck_app.views.home.fixing import MEANS, Fixing, FixRow, Means
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import (
    CopyButton,
    Pill,
    announce,
    button,
    clear,
    field,
    label,
)
from potluck_app.views.widgets.dialogs import Dialog
from potluck_app.views.widgets.words import Described

_WIDTH = 600  # pixels


class DoctorDialog(Dialog):
    """All findings, the worst first. It looks as soon as it is made.

    Args:
        parent: the dialog belongs to its window.
        theme: of the window.
        backend: the node, which looks.
        on_address: lets the person enter the address of another computer; None: not offered.
        means: how the system is asked to do what only an administrator may.
    """

    def __init__(
        self,
        parent: QWidget,
        theme: Theme,
        backend: Backend,
        on_address: Callable[[], object] | None = None,
        means: Means = MEANS,
    ) -> None:
        super().__init__(parent, "doctor", "Doctor", _WIDTH)
        self._theme, self._window, self._means = theme, parent.window(), means
        self.doctor = Doctor(backend, self)
        self.summary = label("", "body2", wrap=True, name="doctor-summary")
        self._column = vbox(spacing=10)
        self.findings: list[FindingView] = []
        self._fixings: dict[str, Fixing] = {}  # the last one of each command
        self._on_address = on_address
        self.address = button("Enter an address", "doctor-address", self._want_address)
        if on_address is None:
            self.address.hide()
        what = "Copy all findings"
        self.copy = CopyButton(theme, what, "doctor-copy", self.doctor.report, shown=what)
        self.again = button("Check again", "doctor-again", self.doctor.examine)
        self.close_button = button("Close", "doctor-close", self.reject)
        self.fill(
            label("What keeps computers apart", "title", wrap=True),
            hbox((self.summary, 1), self.copy, spacing=8),
            self._column,
            buttons=(self.address, self.again, self.close_button),
            spacing=12,
        )
        self.doctor.changed.connect(self._show)
        self.doctor.examine()

    def _show(self) -> None:
        doctor = self.doctor
        self.summary.setText(doctor.summary)
        announce(self, doctor.summary)
        self.again.setEnabled(not doctor.is_looking)
        self.copy.setEnabled(bool(doctor.rows))
        if doctor.is_looking:
            return  # what was found before stays until there is an answer
        clear(self._column)
        self.findings = [FindingView(self._theme, row, self._fix(row)) for row in doctor.rows]
        for finding in self.findings:
            self._column.addWidget(finding)
            finding.show()  # now, so that its height counts
        self.fit()

    def _fix(self, row: FindingRow) -> FixRow | None:
        """The button that has the system do what the command of a finding says, where it can be asked."""
        words = self._means.asking(row.command) if row.command else None
        if words is None:
            return None
        fixing = self._fixings.get(row.command)
        if fixing is None or not fixing.is_running:
            fixing = self._fixings[row.command] = Fixing(words, self._window, self._means, self)
            fixing.fixed.connect(self.doctor.examine)
        return FixRow(fixing)

    def _want_address(self) -> None:
        self.accept()
        if self._on_address is not None:
            self._on_address()


class FindingView(Described, QFrame):
    """One finding. What is well takes one line, what is not also says what to do."""

    def __init__(self, theme: Theme, row: FindingRow, fix: FixRow | None) -> None:
        super().__init__()
        self.fix = fix
        self.setProperty("card", "true")
        parts = (row.pill, row.title, row.text, row.action)
        self.setAccessibleName(" · ".join(filter(None, parts)))
        head = hbox((label(row.title, "strong"), 1), Pill(row.pill, row.tone), spacing=8)
        column = vbox(head, parent=self, margins=(16, 11, 14, 12), spacing=5)
        texts = [label(row.text, "body", wrap=True)]
        texts += [label(row.action, "body2", wrap=True)] if row.action else []
        for text in texts:
            text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            column.addWidget(text)
        if row.command:
            self.command = field("mono", "doctor-command", f"Command: {row.title}")
            self.command.setText(row.command)
            self.command.setCursorPosition(0)
            copy = CopyButton(theme, "Copy command", "doctor-command-copy", self.command.text)
            column.addLayout(hbox((self.command, 1), copy, spacing=8))
        if fix is not None:
            column.addWidget(fix)


def open_doctor(
    parent: QWidget,
    theme: Theme,
    backend: Backend,
    on_address: Callable[[], object] | None = None,
) -> DoctorDialog:
    """Show the doctor above a window, without blocking it."""
    dialog = DoctorDialog(parent, theme, backend, on_address)
    dialog.finished.connect(dialog.deleteLater)
    dialog.open()
    return dialog
