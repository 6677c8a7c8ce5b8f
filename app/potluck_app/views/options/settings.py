"""The Settings page: the look, the role of this computer, and access for other programs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from PySide6.QtWidgets import QButtonGroup, QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from potluck.api.values.schema import ClusterState, RoleRequest
from potluck.ids import grouped
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.language import languages
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import USUAL_TEXT, Theme
from potluck_app.theme import Choice as ThemeChoice
from potluck_app.viewmodels.cluster import Choice, ComputerCard, computer_cards
from potluck_app.views.home.computer_actions import ComputerActions
from potluck_app.views.options.about import AboutCard
from potluck_app.views.options.engine import EnginePart
from potluck_app.views.options.gpus import GpuBoxes
from potluck_app.views.options.network import NetworkCard
from potluck_app.views.options.programs import ProgramsCard
from potluck_app.views.options.shortcuts import shown
from potluck_app.views.options.start_box import StartBox
from potluck_app.views.options.update import UpdateCard
from potluck_app.views.widgets.boxes import STRETCH, Part, hbox, vbox
from potluck_app.views.widgets.controls import (
    IconButton,
    button,
    card_frame,
    fill_page,
    label,
    make_page,
    page_head,
)
from potluck_app.views.widgets.flow import Flow

_Value = TypeVar("_Value")
_WIDTH = 960  # pixels; longer lines are hard to read
_CHOICES: tuple[tuple[ThemeChoice, str], ...] = (
    ("auto", "As the system"),
    ("light", "Light"),
    ("dark", "Dark"),
)
# What happens when the window is closed; how it is called, and what that means.
_CLOSING = (
    (
        "needed",
        "Go on while needed",
        "A download, or a port that programs use, goes on in the tray. Without these, Potluck ends and frees"
        " its memory.",
    ),
    (
        "tray",
        "Stay in the tray",
        "The model stays loaded, and replies go on. On a desktop without a tray, Potluck goes on only while it"
        " is needed.",
    ),
    ("quit", "Quit", "Everything ends. A download goes on when you open Potluck again."),
)
# Seconds after which a model is unloaded that nobody asks; 0: never.
_UNUSED = ((600, "10 minutes"), (1800, "Half an hour"), (7200, "2 hours"), (0, "Never"))
# Mbit/s at which weights are sent at most; 0: no limit.
_DOWNLOADING = ((0, "As fast as it goes"), (1, "1 MB/s"), (5, "5 MB/s"), (20, "20 MB/s"))
_SENDING = ((0, "As fast as it goes"), (50, "50 Mbit/s"), (200, "200 Mbit/s"), (500, "500 Mbit/s"))


class SettingsView(QWidget):
    """The Settings page."""

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        *,
        on_theme: Callable[[ThemeChoice], object],
        on_text_size: Callable[[int], object],
        on_enter: Callable[[bool], object],
        on_shortcuts: Callable[[], object],
        on_share: Callable[[], object],
        on_doctor: Callable[[], object],
        preferences: PreferencesFile,
        on_open_again: Callable[[], object] | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__()
        make_page(self, "settings-page", "Settings")
        self._theme, self._backend, self._on_theme = theme, backend, on_theme
        self._preferences, self._on_enter = preferences, on_enter
        self._actions = ComputerActions(self, backend, lambda _node, _line: None)
        self._me: ComputerCard | None = None
        self.about = AboutCard(log)
        self.network = NetworkCard(backend)
        self.programs = ProgramsCard(theme, backend)
        self.engine = EnginePart(backend)
        self.update_card = UpdateCard(theme, backend, on_open_again)
        fill_page(
            self,
            "Settings",
            page_head("Settings"),
            self._appearance(on_text_size),
            self._keyboard(on_shortcuts),
            self._this_computer(on_share),
            self._unloading(),
            self._downloading(),
            self._sending(),
            self.network,
            self._doctor(on_doctor),
            self.programs,
            self.engine,
            self.update_card,
            self.about,
            label(
                "Nothing you write leaves your home network. There is no telemetry.",
                "meta",
                wrap=True,
            ),
            width=_WIDTH,
        )
        self.show_state(None)

    def _appearance(self, on_text_size: Callable[[int], object]) -> QFrame:
        looks, items = self._choice("theme", _CHOICES, self._on_theme)
        _check(items, self._theme.choice)
        smaller = IconButton(self._theme, "minus", "Smaller text", "text-smaller")
        smaller.clicked.connect(lambda: on_text_size(-1))
        larger = IconButton(self._theme, "plus", "Larger text", "text-larger")
        larger.clicked.connect(lambda: on_text_size(1))
        self.text_size = label("", name="text-size")
        self._theme.changed.connect(self._show_text_size)
        self._show_text_size()
        text = label("Text size", "body2")
        return _section(
            "Appearance",
            "",
            looks,
            hbox(text, 8, smaller, self.text_size, larger, STRETCH, spacing=4),
            *self._languages(),
        )

    def _languages(self) -> tuple[Part, ...]:
        """The choice of the language, once there is more than one."""
        self._language_note = label("It changes when Potluck starts again.", "meta", wrap=True)
        self._language_note.hide()
        choices = (("auto", "As the system"), *languages().items())
        holder, items = self._choice("language", choices, self._choose_language)
        _check(items, self._preferences.current.language)
        return 4, label("Language", "body2"), holder, self._language_note

    def _keyboard(self, on_shortcuts: Callable[[], object]) -> QFrame:
        choices = ((1, "Sends it"), (0, f"New line ({shown('Ctrl+Return')} sends)"))
        holder, self.enter = self._choice(
            "enter", choices, lambda sends: self._on_enter(bool(sends))
        )
        _check(self.enter, self._preferences.current.enter_sends)
        return _section(
            "Keyboard",
            "",
            label("The Enter key in a message", "body2"),
            holder,
            4,
            hbox(button("Keyboard shortcuts", "settings-shortcuts", on_shortcuts), STRETCH),
        )

    def _choose_language(self, code: str) -> None:
        self._language_note.show()
        self._preferences.change(language=code)

    def _show_text_size(self) -> None:
        self.text_size.setText(f"{self._theme.text_size / USUAL_TEXT:.0%}".replace("%", " %"))

    def _this_computer(self, on_share: Callable[[], object]) -> QFrame:
        self.name = label("", name="settings-name", is_quoted=True)
        self.memory = label("", name="settings-memory")
        self.address = label("", is_quoted=True)
        self.address.setWordWrap(True)
        self.node_id = label("", is_quoted=True)
        self.version = label("", is_quoted=True)
        self.gpus = GpuBoxes(self._backend)
        self.start = StartBox()
        share = button("Share this computer instead", "settings-share", on_share)
        self.rename = button("Rename…", "settings-rename", lambda: self._change("rename"))
        self.limit = button("Limit memory…", "settings-limit", lambda: self._change("limit"))
        changes = QWidget()
        row = Flow(changes)
        row.addWidget(self.rename)
        row.addWidget(self.limit)
        then = label("It then helps another computer, from the tray.", "meta", wrap=True)
        return _section(
            "This computer",
            "",
            _line("Name", self.name),
            _line("Memory", self.memory),
            changes,
            self.gpus,
            4,
            _line("Address", self.address),
            _line("Identity", self.node_id),
            _line("Version", self.version),
            4,
            self.start,
            *self._closing(),
            4,
            hbox(share, STRETCH),
            then,
        )

    def _closing(self) -> tuple[Part, ...]:
        """The choice of what happens when the window is closed."""
        choices = [(number, text) for number, (_, text, _) in enumerate(_CLOSING)]
        holder, self.closing = self._choice("closing", choices, self._choose_closing)
        self.closing_means = label("", "meta", wrap=True)
        self._show_closing()
        return 4, label("When the window is closed", "body2"), holder, self.closing_means

    def _choose_closing(self, number: int) -> None:
        self._preferences.change(closing=_CLOSING[number][0])
        self._show_closing()

    def _show_closing(self) -> None:
        for number, (value, _, means) in enumerate(_CLOSING):
            if value == self._preferences.current.closing:
                _check(self.closing, number)
                self.closing_means.setText(means)

    def _change(self, choice: Choice) -> None:
        """Ask for another name or limit of this computer, as its card does."""
        if self._me is not None:
            self._actions.choose(self._me, choice)

    def _unloading(self) -> QFrame:
        holder, self.unloading = self._choice("unload", _UNUSED, self._backend.set_unloading)
        return _section(
            "Unused models",
            "A model that nobody asks for so long is unloaded on all computers. The next question"
            " loads it again.",
            holder,
        )

    def _sending(self) -> QFrame:
        holder, self.sending = self._choice("sending", _SENDING, self._backend.set_sending)
        return _section(
            "Sending models",
            "How fast this computer sends layers to the others at most, to leave your network for other"
            " things. Replies are never held back.",
            holder,
        )

    def _downloading(self) -> QFrame:
        holder, self.downloading = self._choice("download", _DOWNLOADING, self._limit_downloads)
        return _section(
            "Downloading models",
            "How fast models are downloaded at most. One is downloaded at a time, in the order in which"
            " they were chosen.",
            holder,
        )

    def _limit_downloads(self, mb: int) -> None:
        body = RoleRequest(download_limit_mb=mb)
        self._backend.call("POST", "/cluster/role", body).then(failed=self._backend.report)

    def _choice(
        self, name: str, choices: Sequence[tuple[_Value, str]], choose: Callable[[_Value], object]
    ) -> tuple[QWidget, dict[_Value, QPushButton]]:
        """Make a row of buttons of which one is checked; return it, and the button of each value."""
        group, holder = QButtonGroup(self), QWidget()
        row, items = Flow(holder), dict[_Value, QPushButton]()
        for value, text in choices:
            item = button(text, f"{name}-{value}", lambda v=value: choose(v), kind="choice")
            item.setCheckable(True)
            group.addButton(item)
            row.addWidget(item)
            items[value] = item
        return holder, items

    def _doctor(self, on_doctor: Callable[[], object]) -> QFrame:
        return _section(
            "Doctor",
            "It looks for what keeps your computers from finding each other, such as a firewall or a"
            " VPN, and says what to do.",
            hbox(button("Open the doctor", "settings-doctor", on_doctor), STRETCH),
        )

    def show_state(self, state: ClusterState | None) -> None:
        """Show this computer's name, addresses, id and version, and the address for programs."""
        node = state.node if state else None
        self._me = next((c for c in computer_cards(state) if c.is_self), None) if state else None
        for change in (self.rename, self.limit):
            change.setEnabled(self._me is not None)
        self.memory.setText(f"Up to {wording.size(self._me.lends)} for models" if self._me else "…")
        self.name.setText(node.name if node else "…")
        self.address.setText(", ".join(node.addresses) if node and node.addresses else "…")
        self.node_id.setText(grouped(node.node_id) if node else "…")
        self.version.setText(node.version if node else "…")
        self.about.show_state(state)
        self.engine.show_state(state)
        self.update_card.show_state(state)
        if node is not None:
            _check(self.unloading, node.idle_unload_s or 0)
            _check(self.downloading, node.download_limit_mb or 0)
            _check(self.sending, node.upload_limit_mbit or 0)
        self.gpus.show_state(state)
        self.network.show_state(state)
        self.programs.show_state(state)


def _check(items: Mapping[_Value, QPushButton], value: object) -> None:
    """Check the choice that holds; none, if the value is not among them."""
    for choice, item in items.items():
        item.group().setExclusive(False)
        item.setChecked(choice == value)
        item.group().setExclusive(True)


def _section(title: str, text: str, *parts: Part) -> QFrame:
    frame = card_frame()
    above = [label(title, "section"), *([label(text, "body2", wrap=True)] if text else [])]
    vbox(*above, *parts, parent=frame, margins=(20, 16, 20, 18), spacing=10)
    return frame


def _line(title: str, value: QLabel) -> QHBoxLayout:
    heading = label(title, "body2")
    heading.setFixedWidth(96)
    return hbox(heading, (value, 1), spacing=12)
