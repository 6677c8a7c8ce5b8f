"""Keep windows and dialogs inside the screen, whatever its size and its scale."""

from PySide6.QtCore import QEvent, QObject, QSize
from PySide6.QtGui import QScreen
from PySide6.QtWidgets import QWidget

from potluck_app.theme import Theme

_FRAME = QSize(16, 40)  # logical pixels for the border and the title bar that the desktop adds


def room(widget: QWidget) -> QSize:
    """Return the largest size of a window on the screen of a widget, in logical pixels."""
    return widget.screen().availableGeometry().size() - _FRAME


class ScreenFit(QObject):
    """Keeps a window inside its screen, also when the screen changes or becomes another one.

    Args:
        window: gets its size at once.
        wanted: its size where there is room, such as the one that was remembered.
        least: the person cannot make it smaller, except on a screen that has less. It grows with the text.
        theme: has the size of the text.
    """

    def __init__(self, window: QWidget, wanted: QSize, least: QSize, theme: Theme) -> None:
        super().__init__(window)
        self._window, self._usual, self._theme = window, least, theme
        self._screen: QScreen | None = None
        self._fit(wanted)
        window.installEventFilter(self)
        theme.changed.connect(self._refit)  # a method of this object: it ends with the window

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() in (QEvent.Type.Show, QEvent.Type.ScreenChangeInternal):
            self._follow()
        return super().eventFilter(watched, event)

    def _follow(self) -> None:
        screen = self._window.screen()
        if screen is self._screen:
            return
        if self._screen is not None:
            self._screen.availableGeometryChanged.disconnect(self._refit)
        self._screen = screen
        screen.availableGeometryChanged.connect(self._refit)
        self._refit()

    def _refit(self) -> None:
        if self._window.isMaximized() or self._window.isFullScreen():
            return
        self._fit(self._window.size())
        frame, available = self._window.frameGeometry(), self._window.screen().availableGeometry()
        if not available.contains(frame):
            left = max(min(frame.left(), available.right() - frame.width()), available.left())
            top = max(min(frame.top(), available.bottom() - frame.height()), available.top())
            self._window.move(left, top)

    def _fit(self, wanted: QSize) -> None:
        most = room(self._window)
        least = self._theme.least(self._usual).boundedTo(most)
        self._window.setMinimumSize(least)
        self._window.resize(wanted.boundedTo(most).expandedTo(least))
