"""The thoughts of a model: folded away, but open for people who want to read them."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QWidget

from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.controls import IconButton, label


class ThinkingView(QWidget):
    """A line that opens to show the thoughts."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.toggle = IconButton(theme, "chevron-right", "", "reply-thinking", text="Thinking…")
        self.toggle.setProperty("kind", "inline")
        self.toggle.clicked.connect(self._toggle)
        self.text: QLabel = label("", "body2", wrap=True, is_quoted=True)
        self.text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.text.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.text.setAccessibleName(said("Thoughts"))
        self.text.setContentsMargins(22, 0, 0, 0)
        head = hbox(self.toggle, STRETCH)
        vbox(head, self.text, parent=self, spacing=4)
        self.text.hide()
        self.hide()

    def show_thoughts(self, thoughts: str, *, is_done: bool) -> None:
        """Show these thoughts; hide the line if there are none."""
        self.setVisible(bool(thoughts) or not is_done)
        self.toggle.set_text("Thoughts" if is_done else "Thinking…")
        self._name()
        self.text.setText(thoughts)

    def unfold(self) -> None:
        """Show the thoughts."""
        if self.text.isHidden():
            self._toggle()

    def _toggle(self) -> None:
        self.text.setVisible(self.text.isHidden())
        self.toggle.set_icon("chevron-right" if self.text.isHidden() else "chevron-down")
        self._name()

    def _name(self) -> None:
        verb = "Show" if self.text.isHidden() else "Hide"
        self.toggle.setAccessibleName(f"{verb} the thoughts before this reply")
