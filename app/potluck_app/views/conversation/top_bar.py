"""The line above a chat: which model answers, its state, and how much of the context is used."""

from collections.abc import Callable
from typing import Final

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QWidget

from potluck_app import wording
from potluck_app.theme import Theme
from potluck_app.viewmodels.advice import FULL, WARN
from potluck_app.viewmodels.library import Library
from potluck_app.views.conversation.model_picker import ModelPicker
from potluck_app.views.options.shortcuts import shown
from potluck_app.views.widgets.boxes import STRETCH, hbox
from potluck_app.views.widgets.controls import IconButton, Pill, label
from potluck_app.views.widgets.meter import Meter

NARROW: Final = 540  # pixels of the chat; a narrower one has closer parts
_METER, _SHORT_METER = 80, 24  # pixels of the context used, with its figures and without
_NAME = 120  # pixels of the model's name; rather than less, its state is not shown


class TopBar(QWidget):
    """The line above a chat. It leaves out what has no room: first where the model runs, last its state.

    Args:
        theme: of the window.
        library: the models that can be chosen.
        open_models: shows the page of the models.
        on_list: shows or hides the list of chats.
        on_options: shows or hides the options of this chat.
    """

    def __init__(
        self,
        theme: Theme,
        library: Library,
        *,
        open_models: Callable[[], object],
        on_list: Callable[[], object],
        on_options: Callable[[], object],
    ) -> None:
        super().__init__()
        self._theme = theme
        self._model = ("", "")  # its name, and where it runs
        self.model = ModelPicker(theme, library, open_models)
        self.pill = Pill()
        self.pill.setObjectName("chat-pill")
        self.context_text = label("", "meta")
        self.context_meter = Meter(theme, "Context used")
        self.show_list = IconButton(theme, "list", "Show or hide chats", "chat-list-toggle")
        self.show_list.setToolTip(f"Chats ({shown('Ctrl+B')})")
        self.show_list.clicked.connect(on_list)
        self.options = IconButton(theme, "options", "Options of this chat", "chat-options")
        self.options.setToolTip(f"Options of this chat ({shown('Ctrl+I')})")
        self.options.clicked.connect(on_options)
        self._row = hbox(
            *(self.show_list, self.model, self.pill, STRETCH),
            *(self.context_text, self.context_meter, self.options),
            parent=self,
        )
        theme.changed.connect(self.fit)

    @property
    def model_name(self) -> str:
        return self._model[0]

    def show_model(self, name: str, where: str) -> None:
        """Show which model answers, and where it runs; "": nowhere yet."""
        self._model = (name, where)
        self.fit()

    def show_context(self, used: int, context: int) -> None:
        """Show how many tokens of the context are used; `context` is 0 where that is not known."""
        share = used / context if context else 0.0
        of = f" / {wording.thousands(context)}" if context else ""
        text = f"Context {wording.thousands(used)}{of}"
        is_longer = len(text) != len(self.context_text.text())
        self.context_text.setText(text)
        tone = "err" if share >= FULL else "warn" if share >= WARN else "accent"
        self.context_meter.show_fraction(share, tone)
        tip = _context_tip(share, context)
        self.context_text.setToolTip(wording.tip(tip))
        self.context_meter.setToolTip(wording.tip(f"{text}. {tip}"))
        if is_longer:
            self.fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def fit(self) -> None:
        """Show what has room."""
        is_narrow = self.width() < self._theme.px(NARROW)
        side, spacing = (12, 5) if is_narrow else (20, 12)
        self._row.setContentsMargins(side, 10, side, 6)
        self._row.setSpacing(spacing)
        buttons = [each for each in (self.show_list, self.options) if not each.isHidden()]
        room = self.width() - 2 * side - sum(b.sizeHint().width() + spacing for b in buttons)
        name, where = self._model
        needed = self.model.needed_width
        figures = self.context_text.sizeHint().width() + spacing + _METER + spacing
        pill = self.pill.sizeHint().width() + spacing
        is_short = needed(name, where) + pill + figures > room
        has_figures = not is_short or needed(name, "") + pill + figures <= room
        room -= figures if has_figures else _SHORT_METER + spacing
        has_pill = min(needed(name, ""), self._theme.px(_NAME)) + pill <= room
        self.context_text.setVisible(has_figures)
        self.context_meter.setFixedWidth(_METER if has_figures else _SHORT_METER)
        self.pill.setVisible(has_pill)
        self.model.show_model(name, where, is_short=is_short)
        self.model.fit(room - (pill if has_pill else 0))


def _context_tip(share: float, context: int) -> str:
    if not context:
        return "What the model reads at once. How much that can be is known when it is loaded."
    if share >= WARN:
        return "The model reads so many tokens at once. Older messages will be left out."
    return "The model reads so many tokens at once, with its reply."
