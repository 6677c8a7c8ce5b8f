"""The dialog for a computer that does not appear by itself: by address, or by a token."""

from PySide6.QtCore import Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog, QLineEdit, QVBoxLayout, QWidget

from potluck.api.schema import Invite, Pairing
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.views.controls import IconButton, button, hbox, label, rule, set_property, vbox

_COMMAND = "potluck worker --join "


class AddComputerDialog(QDialog):
    """Three ways to add a computer, the simplest first.

    Signals:
        found: the node id of a computer that answered, and the address that was typed for it.
    """

    found = Signal(str, str)

    def __init__(self, parent: QWidget, theme: Theme, backend: Backend) -> None:
        super().__init__(parent)
        self.setObjectName("add-computer")
        self.setWindowTitle("Add computer")
        self.setFixedWidth(520)
        self._theme, self._backend = theme, backend
        column = vbox(self, spacing=10)
        column.setContentsMargins(28, 24, 28, 20)
        column.addWidget(label("Add a computer", "title"))
        column.addWidget(
            label(
                "Start Potluck on the other computer and choose “Share this computer”. It appears"
                " on the Cluster page by itself, with a code that both screens show.",
                "body2",
                wrap=True,
            )
        )
        column.addSpacing(6)
        column.addWidget(rule())
        self._add_address(column)
        column.addSpacing(6)
        column.addWidget(rule())
        self._add_token(column)
        column.addSpacing(10)
        foot = hbox()
        foot.addStretch(1)
        foot.addWidget(button("Close", "add-close", self.reject))
        column.addLayout(foot)

    def _add_address(self, column: QVBoxLayout) -> None:
        self.address = QLineEdit()
        self.address.setObjectName("add-address")
        self.address.setProperty("kind", "field")
        self.address.setAccessibleName("Address of the computer")
        self.address.setPlaceholderText("192.168.1.20 or study-pc.local")
        self.address.returnPressed.connect(self._connect)
        self.add = button("Add", "add-by-address", self._connect)
        self.address_line = label("", "meta", wrap=True)
        self.address_line.setObjectName("add-address-line")
        row = hbox(spacing=8)
        row.addWidget(self.address, 1)
        row.addWidget(self.add)
        column.addSpacing(6)
        column.addWidget(label("It does not appear?", "strong"))
        column.addWidget(label("Type the address that its Potluck window shows.", "body2"))
        column.addLayout(row)
        column.addWidget(self.address_line)
        self.address_line.hide()

    def _add_token(self, column: QVBoxLayout) -> None:
        self.token = QLineEdit()
        self.token.setObjectName("add-token")
        self.token.setProperty("kind", "mono")
        self.token.setAccessibleName("Command for the other computer")
        self.token.setReadOnly(True)
        self.copy = IconButton(self._theme, "copy", "Copy command", "add-token-copy", text="Copy")
        self.copy.clicked.connect(self._copy)
        self.make = button("Make a token", "add-token-make", self._invite)
        self.token_line = label("", "meta", wrap=True)
        self._token_row = QWidget()
        row = hbox(self._token_row, spacing=8)
        row.addWidget(self.token, 1)
        row.addWidget(self.copy)
        column.addSpacing(6)
        column.addWidget(label("It has no screen?", "strong"))
        column.addWidget(label("Run a command there with a token that works once.", "body2"))
        make_row = hbox()
        make_row.addWidget(self.make)
        make_row.addStretch(1)
        column.addLayout(make_row)
        column.addWidget(self._token_row)
        column.addWidget(self.token_line)
        self._token_row.hide()
        self.token_line.hide()

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
        self._fit()

    def _invite(self) -> None:
        self.make.setEnabled(False)
        self._backend.invite().then(self._on_invite, self._on_no_invite)

    def _on_invite(self, invite: Invite) -> None:
        self.make.setEnabled(True)
        self.make.setText("Make another token")
        self.token.setText(_COMMAND + invite.token)
        self.token.setCursorPosition(0)
        left = wording.duration(invite.expires_s)
        self.token_line.setText(
            f"Works once, within {left}. Whoever has it can lend a computer here."
        )
        self._token_row.show()
        self.token_line.show()
        self._fit()

    def _on_no_invite(self, problem: Problem) -> None:
        self.make.setEnabled(True)
        self.token_line.setText(problem.message)
        self.token_line.show()
        self._fit()

    def _fit(self) -> None:
        """Set the height that the wrapped texts need; a dialog does not grow by itself."""
        layout = self.layout()
        assert layout is not None
        layout.activate()
        self.setFixedHeight(layout.heightForWidth(self.width()))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.token.text())
        self.copy.confirm("Copied")
