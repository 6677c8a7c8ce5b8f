"""The drawer at the right: how the shown conversation is answered, and presets of that."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct
from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QFrame,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QWidget,
)

from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.chats.values import Preset, Settings
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.chat import Chat
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.controls import (
    IconButton,
    TintedIcon,
    button,
    field,
    label,
    scrolling,
    set_property,
)
from potluck_app.views.widgets.disclosure import Disclosure
from potluck_app.views.widgets.words import Menu

WIDTH = 300
_SHOW_ADVANCED, _HIDE_ADVANCED = "Show advanced options", "Hide advanced options"
_MAX_SEED = (1 << 63) - 1
_MAX_TOKENS = 1 << 20
_MAX_TOP_K = (1 << 31) - 1  # of the API

BUILT_IN: Final = (
    Preset(name="As the model recommends", settings=Settings()),
    Preset(name="Exact", settings=Settings(temperature=0.2, top_p=0.9)),
    Preset(name="Creative", settings=Settings(temperature=1.1, top_p=0.98, min_p=0.05)),
)


class _Number(Struct, frozen=True):
    """A number of the settings: its field, what it may be, and what it does."""

    name: str
    title: str
    low: float
    high: float
    help: str
    empty: str = "as the model recommends"
    is_whole: bool = False
    is_advanced: bool = True  # most people never set it


_NUMBERS: Final = (
    _Number(
        "temperature",
        "Temperature",
        0,
        100,
        "0: always the likeliest word; 1: freer",
        is_advanced=False,
    ),
    _Number(
        "top_k",
        "Top-k",
        0,
        _MAX_TOP_K,
        "Choose among so many of the likeliest words; 0: among all",
        is_whole=True,
    ),
    _Number("top_p", "Top-p", 0.01, 1, "Choose among the likeliest words of this share"),
    _Number("min_p", "Min-p", 0, 1, "Leave out words that are far less likely than the best"),
    _Number(
        "max_tokens",
        "Maximum tokens",
        1,
        _MAX_TOKENS,
        "A reply ends after so many",
        "all that fit",
        is_whole=True,
        is_advanced=False,
    ),
    _Number(
        "seed",
        "Seed",
        0,
        _MAX_SEED,
        "The same seed gives the same reply",
        "another each time",
        True,
    ),
    _Number(
        "context",
        "Context",
        256,
        _MAX_TOKENS,
        "Send at most so many tokens",
        "as loaded",
        is_whole=True,
        is_advanced=False,
    ),
)


def parsed(number: _Number, text: str) -> float | int | None:
    """Return the value of a field; None for an empty one.

    Raises:
        ValueError: it is no number, or out of its range.
    """
    text = text.strip().replace(",", ".")
    if not text:
        return None
    value = int(text) if number.is_whole else float(text)
    if not number.low <= value <= number.high:  # also False for nan
        raise ValueError(text)
    return value


def _meant(number: _Number) -> str:
    """Say what a field takes."""
    kind = "a whole number" if number.is_whole else "a number"
    if number.high < _MAX_TOKENS:
        return f"{number.title} is {kind} from {number.low:g} to {number.high:g}."
    return f"{number.title} is {kind}, {number.low:g} or more."


class Drawer(QFrame):
    """The options of the shown conversation. Each change counts from the next message on.

    Those that most people never set are folded away, but for one that this chat has set.

    Signals:
        closed: the person wants the drawer to go.
        advanced_chosen: the person wants to see all options, or only the usual ones.
    """

    closed = Signal()
    advanced_chosen = Signal(bool)

    def __init__(self, theme: Theme, backend: Backend, chat: Chat) -> None:
        super().__init__()
        self.setObjectName("drawer")
        self.setProperty("drawer", "true")
        self._backend, self._chat = backend, chat
        self._is_showing = False
        close = IconButton(theme, "close", "Close the options", "drawer-close")
        close.clicked.connect(self.closed)
        self.presets = button("", "drawer-presets", self._open_presets, kind="choice")
        arrow = TintedIcon(theme, "chevron-down", 16)
        hbox(STRETCH, arrow, parent=self.presets, margins=(0, 0, 11, 0))
        self.system = self._make_system()
        self.fields: dict[str, QLineEdit] = {}
        self._rows: list[tuple[_Number, QWidget]] = []
        self._is_advanced = False
        self.advanced = Disclosure(theme, _SHOW_ADVANCED, "", "drawer-advanced")
        self.advanced.clicked.connect(self._toggle_advanced)
        self.error = label("", "error", wrap=True, name="drawer-error")
        self.load = button("Load with this context", "drawer-load", self._load)
        head = hbox((label("Options of this chat", "section"), 1), close, margins=(16, 12, 8, 8))
        self._trouble = QWidget()
        hbox((self.error, 1), parent=self._trouble, margins=(16, 0, 16, 8))
        vbox(
            head,
            self._trouble,
            (scrolling(self._make_options(), "Options of this chat"), 1),
            parent=self,
        )
        chat.shown_changed.connect(self._show)
        chat.settings_changed.connect(self._show)
        chat.presets.changed.connect(self._show)
        backend.state_changed.connect(self._show_load)
        self.show_advanced(False)
        self._show()
        self.hide()

    def _make_options(self) -> QWidget:
        options = QWidget()
        column = vbox(parent=options, margins=(16, 0, 16, 16), spacing=4)
        column.addWidget(label("Preset", "group"))
        column.addWidget(self.presets)
        column.addSpacing(10)
        column.addWidget(label("System prompt", "group"))
        column.addWidget(self.system)
        usual = [number for number in _NUMBERS if not number.is_advanced]
        for number in usual:
            column.addWidget(self._make_row(number))
        column.addSpacing(8)
        column.addWidget(self.load)
        column.addLayout(hbox(self.advanced, STRETCH))
        for number in _NUMBERS:
            if number not in usual:
                column.addWidget(self._make_row(number))
        column.addSpacing(12)
        column.addWidget(self._make_saving())
        column.addStretch(1)
        return options

    def _make_system(self) -> QPlainTextEdit:
        system = QPlainTextEdit()
        system.setObjectName("drawer-system")
        system.setAccessibleName(said("System prompt"))
        system.setProperty("kind", "field")
        hint = "How the model should answer: its role, its tone, its language"
        system.setPlaceholderText(said(hint))
        system.setTabChangesFocus(True)
        system.setFixedHeight(130)
        system.textChanged.connect(self._change)
        return system

    def _make_row(self, number: _Number) -> QWidget:
        row = QWidget()
        parts = label(number.title, "group"), self._make_field(number)
        vbox(8, *parts, label(number.help, "small", wrap=True), parent=row, spacing=4)
        self._rows.append((number, row))
        return row

    def _make_field(self, number: _Number) -> QLineEdit:
        line = field("field", f"drawer-{number.name}", number.title)
        line.setPlaceholderText(number.empty)
        line.setToolTip(wording.tip(number.help))
        line.textEdited.connect(lambda _text: self._change())
        self.fields[number.name] = line
        return line

    def _make_saving(self) -> QWidget:
        self.name = field("field", "drawer-preset-name", "Name of the preset")
        self.name.setPlaceholderText("Name of a preset")
        self.name.returnPressed.connect(self._save)
        holder = QWidget()
        save = button("Save", "drawer-save", self._save)
        row = hbox((self.name, 1), save, spacing=8)
        vbox(label("Save these options as a preset", "group"), row, parent=holder, spacing=4)
        return holder

    # --- what is shown

    def _show(self) -> None:
        """Show the settings; a field keeps what the person just writes into it."""
        settings = self._chat.settings
        self._is_showing = True
        if self.system.toPlainText() != settings.system:
            self.system.setPlainText(settings.system)
        for number in _NUMBERS:
            value = getattr(settings, number.name)
            line = self.fields[number.name]
            try:
                is_same = parsed(number, line.text()) == value
            except ValueError:
                is_same = False
            if not is_same:
                line.setText("" if value is None else f"{value:g}" if value < 1e6 else str(value))
        self._is_showing = False
        self._show_rows()
        self._forget_error()
        self._show_preset(settings)
        self._show_load()

    def show_advanced(self, is_advanced: bool) -> None:
        """Show all options, or only the usual ones."""
        self._is_advanced = is_advanced
        text = _HIDE_ADVANCED if is_advanced else _SHOW_ADVANCED
        self.advanced.set_text(text)
        self.advanced.setAccessibleName(text)
        self.advanced.show_open(is_advanced)
        self._show_rows()

    def _show_rows(self) -> None:
        for number, row in self._rows:
            is_set = getattr(self._chat.settings, number.name) is not None
            has_focus = self.fields[number.name].hasFocus()
            row.setHidden(number.is_advanced and not (self._is_advanced or is_set or has_focus))

    def _toggle_advanced(self) -> None:
        self.show_advanced(not self._is_advanced)
        self.advanced_chosen.emit(self._is_advanced)

    def _show_preset(self, settings: Settings) -> None:
        known = (*self._chat.presets.all, *BUILT_IN)
        current = next((preset.name for preset in known if preset.settings == settings), "Custom")
        self.presets.setText(wording.without_mnemonic(current))
        self.presets.setAccessibleName(f"Preset: {current}. Choose another")

    def _show_load(self, _state: object = None) -> None:
        state, wanted = self._backend.live_state, self._chat.settings.context
        loaded = state.model.context if state else 0
        self.load.setVisible(bool(wanted and loaded and wanted > loaded))

    # --- what the person does

    def _change(self) -> None:
        if self._is_showing:
            return
        self._forget_error()
        changes: dict[str, object] = {"system": self.system.toPlainText()}
        for number in _NUMBERS:
            try:
                changes[number.name] = parsed(number, self.fields[number.name].text())
            except ValueError:
                self._say(_meant(number))
                set_property(self.fields[number.name], "wrong", "true")
                return
        self._chat.set_settings(msgspec.structs.replace(self._chat.settings, **changes))

    def _open_presets(self) -> None:
        self.presets_menu().popup(self.presets.mapToGlobal(self.presets.rect().bottomLeft()))

    def presets_menu(self) -> QMenu:
        """Return the menu of the presets: each to choose, and the person's own to delete."""
        menu = Menu(self)
        menu.setAccessibleName("Presets")
        menu.aboutToHide.connect(menu.deleteLater)
        for preset in (*BUILT_IN, *self._chat.presets.all):
            chosen = menu.addAction(wording.without_mnemonic(preset.name))
            chosen.triggered.connect(self._chooser(preset))
        if self._chat.presets.all:
            menu.addSeparator()
        for preset in self._chat.presets.all:
            delete = menu.addAction(wording.without_mnemonic(f"Delete “{preset.name}”"))
            delete.triggered.connect(
                lambda _checked=False, name=preset.name: self._chat.presets.delete(name)
            )
        return menu

    def _chooser(self, preset: Preset) -> Callable[[], None]:
        def choose() -> None:
            settings = preset.settings
            if preset in BUILT_IN:  # they are about the choice of words alone
                system, context = self._chat.settings.system, self._chat.settings.context
                settings = msgspec.structs.replace(settings, system=system, context=context)
            self._chat.set_settings(settings)

        return choose

    def _save(self) -> None:
        name = " ".join(self.name.text().split())
        if not name or any(preset.name == name for preset in BUILT_IN):
            self._say("Give the preset a name of its own.")
            return
        self._chat.presets.save(name, self._chat.settings)
        self.name.clear()

    def _load(self) -> None:
        context = self._chat.settings.context
        if context is not None:
            self._backend.load_context(context).failed.connect(
                lambda problem: self._say(problem.message)
            )

    def _say(self, text: str) -> None:
        self.error.setText(text)
        self._trouble.show()

    def _forget_error(self) -> None:
        self.error.setText("")
        self._trouble.hide()
        for line in self.fields.values():
            set_property(line, "wrong", "")
