"""The address for other programs: of this computer alone, or with a key of the whole network."""

import secrets

from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QFrame, QLineEdit, QWidget

from potluck.api.values.schema import ClusterState, Listener
from potluck_app.backend import Backend, is_local
from potluck_app.http import Problem
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.check_box import CheckBox
from potluck_app.views.widgets.controls import CopyButton, button, field, label, set_property

_DEFAULT_PORT = 8000
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - only when the person ticks it, and then with a key
_KEY_BYTES = 24
_OFF = "Off. Nothing listens for programs."
_HERE = "Only programs on this computer reach it; they need no key."
_OTHERS = (
    "Programs on other computers of your network reach it with this key. What they send is not"
    " encrypted on its way."
)
_OTHERS_UNSEEN = (
    "Programs on other computers of your network reach it with the key that was shown when it was"
    " turned on. For another key, turn it off and on again."
)


class ProgramsCard(QFrame):
    """Turns the address for other programs on and off."""

    def __init__(self, theme: Theme, backend: Backend) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._backend = backend
        self._state: ClusterState | None = None
        self.port = field("field", "api-port", "Port")
        self.port.setText(str(_DEFAULT_PORT))
        self.port.setValidator(QIntValidator(1, 65535, self))
        self.port.setFixedWidth(80)
        self.others = CheckBox("Other computers too, with a key", "api-others")
        self.api = button("Turn on", "api-toggle", self._toggle)
        self.url = field("mono", "api-url", "Address for programs")
        self.copy = CopyButton(theme, "Copy address", "api-copy", self.url.text)
        self.key = field("mono", "api-key", "Key for programs")
        self.copy_key = CopyButton(theme, "Copy key", "api-key-copy", self.key.text)
        self.line = label("", "meta", wrap=True)
        self._off_row, self._on_row, self._key_row = QWidget(), QWidget(), QWidget()
        hbox(label("Port", "body2"), self.port, parent=self._off_row, spacing=8)
        _line("Address", self.url, self.copy, self._on_row)
        _line("Key", self.key, self.copy_key, self._key_row)
        text = "Programs on this computer can use your models as they would use OpenAI's."
        vbox(
            label("Other programs", "section"),
            label(text, "body2", wrap=True),
            self._on_row,
            self._key_row,
            hbox(self._off_row, self.api, STRETCH, spacing=8),
            self.others,
            self.line,
            parent=self,
            margins=(20, 16, 20, 18),
            spacing=10,
        )

    def show_state(self, state: ClusterState | None) -> None:
        """Show the address that is open, with its key as far as it is known."""
        self._state = state
        self.api.setEnabled(state is not None)
        listener = _listener(state)
        self._off_row.setVisible(listener is None)
        self.others.setVisible(listener is None)
        self._on_row.setVisible(listener is not None)
        self.api.setText("Turn on" if listener is None else "Turn off")
        self.api.setAccessibleName(f"{self.api.text()} the address for programs")
        key = "" if listener is None else self._backend.key_of(listener)
        self._key_row.setVisible(bool(key))
        self.key.setText(key)
        self.key.setCursorPosition(0)
        if listener is not None and state is not None:
            self.url.setText(f"http://{_host(listener, state)}:{listener.port}/v1")
            self.url.setCursorPosition(0)
            is_here = is_local(listener)
            self._say(_HERE if is_here else _OTHERS if key else _OTHERS_UNSEEN)
        elif self.line.property("kind") != "error":
            self._say(_OFF)

    def _toggle(self) -> None:
        listener = _listener(self._state)
        self._say("")
        if listener is not None:
            self._backend.close_listener(listener.port).then(failed=self._on_problem)
            return
        port = int(self.port.text() or _DEFAULT_PORT)
        if self.others.isChecked():
            key = secrets.token_urlsafe(_KEY_BYTES)
            call = self._backend.open_listener(port, host=_EVERYWHERE, key=key)
        else:
            call = self._backend.open_listener(port)
        call.then(failed=self._on_problem)

    def _on_problem(self, problem: Problem) -> None:
        self._say(problem.message, is_error=True)

    def _say(self, text: str, *, is_error: bool = False) -> None:
        self.line.setText(text)
        set_property(self.line, "kind", "error" if is_error else "meta")


def _line(title: str, text: QLineEdit, copy: CopyButton, row: QWidget) -> None:
    """Fill a row with what a program is given, and a button that copies it."""
    vbox(hbox((label(title, "body2"), 1), copy, spacing=8), text, parent=row)


def _listener(state: ClusterState | None) -> Listener | None:
    """Return the listener that is shown: one of this computer alone, if there is one."""
    listeners = state.listeners if state is not None else ()
    return min(listeners, key=lambda each: not is_local(each), default=None)


def _host(listener: Listener, state: ClusterState) -> str:
    """Return the host that a program is given."""
    if is_local(listener) or not state.node.addresses:
        return "127.0.0.1"
    return state.node.addresses[0].rpartition(":")[0]
