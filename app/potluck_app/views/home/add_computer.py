"""The dialog for a computer that does not appear by itself: by address, or by a token and its QR code."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from potluck.api.values.pairing import Invite, Pairing
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import STRETCH, Part, hbox, vbox
from potluck_app.views.widgets.controls import CopyButton, button, field, label, rule, set_property
from potluck_app.views.widgets.dialogs import Dialog
from potluck_app.views.widgets.qr import QrCode

_COMMAND = "potluck worker --join "


class AddComputerDialog(Dialog):
    """Three ways to add a computer, the simplest first.

    Signals:
        found: the node id of a computer that answered, and the address that was typed for it.
        doctor_wanted: the person wants to know why it does not appear.
    """

    found = Signal(str, str)
    doctor_wanted = Signal()

    def __init__(self, parent: QWidget, theme: Theme, backend: Backend) -> None:
        super().__init__(parent, "add-computer", "Add computer", width=520)
        self._theme, self._backend = theme, backend
        self.fill(
            label("Add a computer", "title"),
            label(
                "Start Potluck on the other computer and choose “Share this computer”. It appears"
                " on the Cluster page by itself, with a code that both screens show.",
                "body2",
                wrap=True,
            ),
            6,
            rule(),
            *self._address_parts(),
            6,
            rule(),
            *self._token_parts(),
            buttons=(button("Close", "add-close", self.reject),),
            spacing=10,
        )

    def _address_parts(self) -> tuple[Part, ...]:
        self.address = field("field", "add-address", "Address of the computer")
        self.address.setPlaceholderText("192.168.1.20 or study-pc.local")
        self.address.returnPressed.connect(self._connect)
        self.add = button("Add", "add-by-address", self._connect)
        self.address_line = label("", "meta", wrap=True, name="add-address-line")
        self.address_line.hide()
        self.doctor = button("Find out why", "add-doctor", self._want_doctor)
        return (
            6,
            label("It does not appear?", "strong"),
            label("Type the address that its Potluck window shows.", "body2", wrap=True),
            hbox((self.address, 1), self.add, spacing=8),
            self.address_line,
            hbox(self.doctor, STRETCH),
        )

    def _token_parts(self) -> tuple[Part, ...]:
        self.token = field("mono", "add-token", "Command for the other computer")
        self.copy = CopyButton(self._theme, "Copy command", "add-token-copy", self.token.text)
        self.make = button("Make a token", "add-token-make", self._invite)
        self.token_line = label("", "meta", wrap=True)
        self._token_row = QWidget()
        hbox((self.token, 1), self.copy, parent=self._token_row, spacing=8)
        self.qr = QrCode("QR code of the command")
        self.scan = label("The code is the same command, for a camera.", "meta", wrap=True)
        self.scan.hide()
        self._token_row.hide()
        self.token_line.hide()
        return (
            6,
            label("It has no screen?", "strong"),
            label("Run a command there with a token that works once.", "body2", wrap=True),
            self._token_row,
            hbox(
                self.qr,
                (vbox(hbox(self.make, STRETCH), self.scan, self.token_line, STRETCH, spacing=8), 1),
                spacing=16,
            ),
        )

    def _want_doctor(self) -> None:
        self.reject()
        self.doctor_wanted.emit()

    def _connect(self) -> None:
        address = self.address.text().strip()
        if not address:
            self._say("Type an address first.", is_error=True)
            return
        self.add.setEnabled(False)
        self._say(f"Looking for {address}…")
        self._backend.ask_pairing(address).then(
            lambda pairing: self._on_found(pairing, address), self._on_not_found
        )

    def _on_found(self, pairing: Pairing, address: str) -> None:
        """Close the dialog; the Cluster page shows the card with the code."""
        self.found.emit(pairing.node_id, address)
        self.accept()

    def _on_not_found(self, problem: Problem) -> None:
        self.add.setEnabled(True)
        self._say(problem.message, is_error=True)

    def _say(self, text: str, *, is_error: bool = False) -> None:
        self.address_line.setText(text)
        set_property(self.address_line, "kind", "error" if is_error else "meta")
        self.address_line.show()
        self.fit()

    def _invite(self) -> None:
        self.make.setEnabled(False)
        self._backend.invite().then(self._on_invite, self._on_no_invite)

    def _on_invite(self, invite: Invite) -> None:
        self.make.setEnabled(True)
        self.make.setText("Make another token")
        self.token.setText(_COMMAND + invite.token)
        self.token.setCursorPosition(0)
        self.qr.show_text(self.token.text())
        self.scan.show()
        left = wording.duration(invite.expires_s)
        self.token_line.setText(
            f"Works once, within {left}. Whoever has it can lend a computer here."
        )
        self._token_row.show()
        self.token_line.show()
        self.fit()

    def _on_no_invite(self, problem: Problem) -> None:
        self.make.setEnabled(True)
        self.token_line.setText(problem.message)
        self.token_line.show()
        self.fit()
