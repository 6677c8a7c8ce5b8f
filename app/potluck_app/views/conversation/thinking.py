"""The thoughts of a model: folded away, but open for people who want to read them."""

from PySide6.QtWidgets import QWidget

from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.disclosure import Disclosure
from potluck_app.views.widgets.plain import PlainView

_INDENT = 16  # pixels, which tell the thoughts from the reply


class ThinkingView(QWidget):
    """A line that opens to show the thoughts."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.toggle = Disclosure(theme, "Thinking…", "", "reply-thinking")
        self.toggle.clicked.connect(self._toggle)
        self.text = PlainView(theme, "Thoughts", "body2")
        head = hbox(self.toggle, STRETCH)
        vbox(head, hbox(self.text, margins=(_INDENT, 0, 0, 0)), parent=self, spacing=4)
        self.text.hide()
        self.hide()

    def show_thoughts(self, thoughts: str, *, is_done: bool) -> None:
        """Show these thoughts; hide the line if there are none."""
        self.setVisible(bool(thoughts) or not is_done)
        self.toggle.set_text("Thoughts" if is_done else "Thinking…")
        self._name()
        self.text.show_text(thoughts)

    def fit(self, width: int) -> None:
        """Wrap the thoughts for a page of this width."""
        self.text.fit(max(width - _INDENT, 0))

    def unfold(self) -> None:
        """Show the thoughts."""
        if self.text.isHidden():
            self._toggle()

    def _toggle(self) -> None:
        self.text.setVisible(self.text.isHidden())
        self.toggle.show_open(not self.text.isHidden())
        self._name()

    def _name(self) -> None:
        verb = "Show" if self.text.isHidden() else "Hide"
        self.toggle.setAccessibleName(f"{verb} the thoughts before this reply")
