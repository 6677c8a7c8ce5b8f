"""The Settings page: the look, the role of this computer, and access for other programs."""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QIntValidator
from PySide6.QtWidgets import QButtonGroup, QFrame, QLineEdit, QVBoxLayout, QWidget

from potluck.api.schema import ClusterState, Listener
from potluck.ids import grouped
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.theme import Choice, Theme
from potluck_app.views.controls import (
    IconButton,
    button,
    hbox,
    label,
    scrolling_page,
    set_property,
    vbox,
)

_DEFAULT_PORT = 8000
_CHOICES: tuple[tuple[Choice, str], ...] = (
    ("auto", "As the system"),
    ("light", "Light"),
    ("dark", "Dark"),
)


class SettingsView(QWidget):
    """The Settings page."""

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        *,
        on_theme: Callable[[Choice], object],
        on_share: Callable[[], object],
    ) -> None:
        super().__init__()
        self.setObjectName("settings-page")
        self.setProperty("page", "true")
        self.setAccessibleName("Settings")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._theme, self._backend, self._on_theme = theme, backend, on_theme
        column = scrolling_page(self, "Settings")
        column.addWidget(label("Settings", "title"))
        column.addWidget(self._appearance())
        column.addWidget(self._this_computer(on_share))
        column.addWidget(self._programs())
        column.addWidget(
            label("Nothing you write leaves your home network. There is no telemetry.", "meta")
        )
        column.addStretch(1)
        self.show_state(None)

    def _appearance(self) -> QFrame:
        frame, column = _section("Appearance", "How the window looks.")
        group = QButtonGroup(self)
        row = hbox(spacing=8)
        for choice, text in _CHOICES:
            item = button(
                text, f"theme-{choice}", lambda c=choice: self._on_theme(c), kind="choice"
            )
            item.setCheckable(True)
            item.setChecked(self._theme.choice == choice)
            group.addButton(item)
            row.addWidget(item)
        row.addStretch(1)
        column.addLayout(row)
        return frame

    def _this_computer(self, on_share: Callable[[], object]) -> QFrame:
        frame, column = _section("This computer", "")
        self.name = label("", "body")
        self.name.setObjectName("settings-name")
        self.address = label("", "body")
        self.address.setWordWrap(True)
        self.node_id = label("", "body")
        self.version = label("", "body")
        for title, value in (
            ("Name", self.name),
            ("Address", self.address),
            ("Identity", self.node_id),
            ("Version", self.version),
        ):
            line = hbox(spacing=12)
            heading = label(title, "body2")
            heading.setFixedWidth(96)
            line.addWidget(heading)
            line.addWidget(value, 1)
            column.addLayout(line)
        share = button("Share this computer instead", "settings-share", on_share)
        foot = hbox(spacing=12)
        foot.addWidget(share)
        foot.addWidget(label("It then helps another computer, from the tray.", "meta"), 1)
        column.addSpacing(4)
        column.addLayout(foot)
        return frame

    def _programs(self) -> QFrame:
        frame, column = _section(
            "Other programs",
            "Programs on this computer can use your models as they would use OpenAI's.",
        )
        self.port = QLineEdit(str(_DEFAULT_PORT))
        self.port.setObjectName("api-port")
        self.port.setAccessibleName("Port")
        self.port.setProperty("kind", "field")
        self.port.setValidator(QIntValidator(1, 65535, self))
        self.port.setFixedWidth(80)
        self.api = button("Turn on", "api-toggle", self._toggle_api)
        self._off_row = QWidget()
        off = hbox(self._off_row, spacing=8)
        off.addWidget(label("Port", "body2"))
        off.addWidget(self.port)
        off.addStretch(1)
        self.url = QLineEdit()
        self.url.setObjectName("api-url")
        self.url.setAccessibleName("Address for programs")
        self.url.setProperty("kind", "mono")
        self.url.setReadOnly(True)
        self.copy = IconButton(self._theme, "copy", "Copy address", "api-copy", text="Copy")
        self.copy.clicked.connect(self._copy)
        self._on_row = QWidget()
        on = hbox(self._on_row, spacing=8)
        on.addWidget(self.url, 1)
        on.addWidget(self.copy)
        self._api_line = label("", "meta", wrap=True)
        row = hbox(spacing=8)
        row.addWidget(self._off_row)
        row.addWidget(self._on_row, 1)
        row.addWidget(self.api)
        column.addLayout(row)
        column.addWidget(self._api_line)
        return frame

    def show_state(self, state: ClusterState | None) -> None:
        """Show this computer's name, addresses, id and version, and the address for programs."""
        node = state.node if state else None
        self.name.setText(node.name if node else "…")
        self.address.setText(", ".join(node.addresses) if node and node.addresses else "…")
        self.node_id.setText(grouped(node.node_id) if node else "…")
        self.version.setText(node.version if node else "…")
        self.api.setEnabled(state is not None)
        listener = _loopback(state)
        self._off_row.setVisible(listener is None)
        self._on_row.setVisible(listener is not None)
        self.api.setText("Turn on" if listener is None else "Turn off")
        self.api.setAccessibleName(f"{self.api.text()} the address for programs")
        if listener is not None:
            self.url.setText(f"http://127.0.0.1:{listener.port}/v1")
            self._say("Only programs on this computer reach it; they need no key.")
        elif self._api_line.property("kind") != "error":
            self._say("Off. Nothing listens for programs.")

    def _toggle_api(self) -> None:
        listener = _loopback(self._backend.state)
        self._say("")
        if listener is not None:
            self._backend.close_listener(listener.port).then(failed=self._on_problem)
        else:
            port = int(self.port.text() or _DEFAULT_PORT)
            self._backend.open_listener(port).then(failed=self._on_problem)

    def _on_problem(self, problem: Problem) -> None:
        self._say(problem.message, is_error=True)

    def _say(self, text: str, *, is_error: bool = False) -> None:
        self._api_line.setText(text)
        set_property(self._api_line, "kind", "error" if is_error else "meta")

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.url.text())
        self.copy.confirm("Copied")


def _loopback(state: ClusterState | None) -> Listener | None:
    if state is None:
        return None
    local = (listener for listener in state.listeners if listener.host in ("127.0.0.1", "::1"))
    return next(local, None)


def _section(title: str, text: str) -> tuple[QFrame, QVBoxLayout]:
    frame = QFrame()
    frame.setProperty("card", "true")
    column = vbox(frame, spacing=10)
    column.setContentsMargins(20, 16, 20, 18)
    column.addWidget(label(title, "section"))
    if text:
        column.addWidget(label(text, "body2", wrap=True))
    return frame, column
