"""A button as large as a card."""

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QSizePolicy

from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import label
from potluck_app.views.widgets.words import PushButton


class CardButton(PushButton):
    """A button as large as a card, whose text goes on in the next line where it lacks the width."""

    def __init__(self, text: str, name: str, on_click: Callable[[], object]) -> None:
        self._words = label("", wrap=True)  # first, since a button sets its text when it is made
        super().__init__(text)
        self.setObjectName(name)
        self.setAccessibleName(text)
        self.setProperty("kind", "card")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Minimum)
        self._words.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        vbox(self._words, parent=self, margins=(16, 8, 16, 8))
        self.clicked.connect(lambda: on_click())

    def setText(self, text: str) -> None:
        self._given = text
        self._words.setText(text)

    def sizeHint(self) -> QSize:
        layout = self.layout()
        return super().sizeHint() if layout is None else layout.totalSizeHint()

    def minimumSizeHint(self) -> QSize:
        layout = self.layout()
        return super().minimumSizeHint() if layout is None else layout.totalMinimumSize()
