"""One line under the title for messages."""

from collections.abc import Callable
from typing import Literal

from PySide6.QtWidgets import QFrame

from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import hbox
from potluck_app.views.widgets.controls import IconButton, TintedIcon, announce, label, set_property


class Banner(QFrame):
    """One line under the title: what happened, and at most one possible action."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setObjectName("banner")
        self.setProperty("tone", "info")
        self._theme = theme
        self._icon = TintedIcon(theme, "info", 16)
        self.text = label(wrap=True, name="banner-text")
        self._close = IconButton(theme, "close", "Dismiss", "banner-close")
        self._close.clicked.connect(self._dismiss)
        self._on_dismiss: Callable[[], object] = lambda: None
        hbox(
            self._icon, (self.text, 1), self._close, parent=self, margins=(14, 4, 6, 4), spacing=10
        )
        self.hide()

    def show_line(
        self,
        text: str,
        tone: Literal["info", "warning", "error"] = "info",
        *,
        on_dismiss: Callable[[], object] | None = None,
    ) -> None:
        """Show a line. The person can dismiss it if `on_dismiss` is given."""
        if text != self.text.text() or self.isHidden():
            announce(self, text)
        self.text.setText(text)
        set_property(self, "tone", tone)
        set_property(self.text, "tone", tone)
        icon = "info" if tone == "info" else "warning"
        self._icon.set_icon(icon, lambda: self._color(tone))
        self._on_dismiss = on_dismiss or (lambda: None)
        self._close.setVisible(on_dismiss is not None)
        self.show()

    def _color(self, tone: str) -> str:
        tokens = self._theme.tokens
        return {"info": tokens.accent, "warning": tokens.warn, "error": tokens.err}[tone]

    def _dismiss(self) -> None:
        self.hide()
        self._on_dismiss()
