"""The line above the composer that says what to do about a full context."""

from PySide6.QtWidgets import QFrame, QWidget

from potluck_app.theme import Theme
from potluck_app.viewmodels.advice import Advice
from potluck_app.views.widgets.boxes import hbox, vbox
from potluck_app.views.widgets.controls import IconButton, announce, button, clear, label
from potluck_app.views.widgets.flow import Flow


class AdviceLine(QFrame):
    """A sentence, and below it a button for each thing to do. Hidden if there is nothing to say."""

    def __init__(self, theme: Theme, advice: Advice) -> None:
        super().__init__()
        self.setObjectName("advice")
        self.setProperty("tone", "warning")
        self._advice = advice
        self.text = label("", wrap=True, name="advice-text")
        self.text.setProperty("tone", "warning")
        self._close = IconButton(theme, "close", "Dismiss", "advice-close")
        self._close.clicked.connect(lambda: advice.act("close"))
        holder = QWidget()
        self._buttons = Flow(holder)
        self._shown: tuple[tuple[str, str], ...] = ()
        head = hbox((self.text, 1), self._close, spacing=8)
        vbox(head, holder, parent=self, margins=(14, 8, 8, 10), spacing=6)
        advice.changed.connect(self._refresh)
        self._refresh()

    def _refresh(self) -> None:
        advice = self._advice
        if advice.text and advice.text != self.text.text():
            announce(self, advice.text)
        self.text.setText(advice.text)
        if advice.actions != self._shown:
            self._shown = advice.actions
            clear(self._buttons)
            for name, text in advice.actions:
                act = button(text, f"advice-{name}", lambda name=name: advice.act(name))
                self._buttons.addWidget(act)
        self.setVisible(bool(advice.text))
