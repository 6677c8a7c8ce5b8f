"""The text field for prompts: it grows with the text, Enter sends, and Send becomes Stop."""

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from potluck_app.theme import Theme
from potluck_app.views.boxes import STRETCH, hbox, vbox
from potluck_app.views.controls import ButtonIcon, button, label, set_property

_MAX_LINES = 8
_MAX_CHARACTERS = 200_000  # far above any context; a pasted video file must not freeze the window


class ComposerText(QPlainTextEdit):
    """The text field.

    Signals:
        submitted: Enter was pressed.
    """

    submitted = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setObjectName("composer-text")
        self.setAccessibleName("Message")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(lambda _size: self._fit())
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
            return
        super().keyPressEvent(event)

    def _fit(self) -> None:
        # The layout of a QPlainTextEdit measures its height in lines.
        lines = max(round(self.document().documentLayout().documentSize().height()), 1)
        shown = min(lines, _MAX_LINES)
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(
            policy.ScrollBarAsNeeded if lines > _MAX_LINES else policy.ScrollBarAlwaysOff
        )
        self.setFixedHeight(shown * self.fontMetrics().lineSpacing() + 4)


class Composer(QFrame):
    """The text field with its button.

    Signals:
        sent: a text to send.
        stopped: the person wants the reply to end.
    """

    sent = Signal(str)
    stopped = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setProperty("composer", "true")
        self._is_busy = False
        self.text = ComposerText(theme)
        self.text.submitted.connect(self._submit)
        self.text.textChanged.connect(self._enable)
        self.text.installEventFilter(self)
        self.button = button("Send", "composer-send", self._on_button, kind="primary")
        self._icon = ButtonIcon(
            self.button,
            theme,
            "send",
            lambda: theme.tokens.text if self._is_busy else theme.tokens.accent_on,
        )
        hint = label("Enter to send, Shift+Enter for a new line", "meta")
        foot = hbox(hint, STRETCH, self.button, spacing=8)
        vbox(self.text, foot, parent=self, margins=(18, 14, 8, 8), spacing=10)
        self.setFocusProxy(self.text)
        self._enable()

    def set_model_name(self, name: str) -> None:
        self.text.setPlaceholderText(f"Message {name}")

    def set_busy(self, is_busy: bool) -> None:
        """Offer Stop during a reply, else Send."""
        self._is_busy = is_busy
        self.button.setText("Stop" if is_busy else "Send")
        self.button.setAccessibleName("Stop the reply" if is_busy else "Send")
        set_property(self.button, "kind", "plain" if is_busy else "primary")
        self._icon.set_icon("stop" if is_busy else "send")
        self._enable()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.FocusIn:
            set_property(self, "composer", "focused")
        elif event.type() == QEvent.Type.FocusOut:
            set_property(self, "composer", "true")
        return super().eventFilter(watched, event)

    def _enable(self) -> None:
        self.button.setEnabled(self._is_busy or bool(self.text.toPlainText().strip()))

    def _on_button(self) -> None:
        if self._is_busy:
            self.stopped.emit()
        else:
            self._submit()

    def _submit(self) -> None:
        text = self.text.toPlainText().strip()[:_MAX_CHARACTERS]
        if text and not self._is_busy:
            self.text.clear()
            self.sent.emit(text)
