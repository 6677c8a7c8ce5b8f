"""The strip at the left edge of the window, with a button for each page."""

from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QFrame

from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.controls import IconButton


class Rail(QFrame):
    """The strip of buttons at the left edge."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("side", "true")
        self.column = vbox(parent=self, margins=(8, 14, 8, 14), spacing=6)


class RailButton(IconButton):
    """The button of one page: an icon, which is called as the page, above the page's name."""

    def __init__(self, theme: Theme, page: str) -> None:
        icon = page.lower()
        super().__init__(theme, icon, page, f"rail-{icon}", size=20)
        self.setProperty("kind", "rail")
        self.setText(page)
        self.setToolTip("")
        self.setCheckable(True)
        self.setAutoExclusive(True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
        self.toggled.connect(self.tint)
        self.tint()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def tint(self) -> None:
        super().tint()
        self.ensurePolished()
        self._fit()

    def _fit(self) -> None:
        """Have room for the name of the page in the font that the button has now."""
        words = self.fontMetrics().horizontalAdvance(said(self.text())) + 12
        self.setFixedSize(max(self._theme.px(60), 60, words), max(self._theme.px(59), 59))
