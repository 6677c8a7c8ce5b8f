"""One line under the title for messages."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QFrame

from potluck.api.values.schema import Notice
from potluck_app.backend import Backend
from potluck_app.node_connection import Connection
from potluck_app.preferences import PreferencesFile
from potluck_app.theme import Theme
from potluck_app.viewmodels.going_on import offered, update_line
from potluck_app.viewmodels.notices import Notices
from potluck_app.views.widgets.boxes import hbox
from potluck_app.views.widgets.controls import IconButton, TintedIcon, announce, label, set_property

_PROBLEM_MS = 20_000  # time to read why a command failed


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
        self.text.setContentsMargins(
            0, 2, 0, 2
        )  # lines of text are further from the edge than a button
        place = self._close.sizePolicy()
        place.setRetainSizeWhenHidden(True)  # the line is as high without it
        self._close.setSizePolicy(place)
        hbox(
            *(self._icon, (self.text, 1), self._close),
            parent=self,
            margins=(14, 6, 6, 6),
            spacing=10,
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


class NewsBanner(Banner):
    """What a window has to say, one line at a time: the most severe first.

    That the node is away stays until it is back, why a command failed for a while, and a trouble that
    lasts, what the node tells, or that there is a newer version, until the person has read it.

    Signals:
        refreshed: another line may be shown, or none.
    """

    refreshed = Signal()

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        restarting: str,
        preferences: PreferencesFile | None = None,
    ) -> None:
        """`restarting` is said while the node is started again; `preferences` keep which version was read of.

        Without these, newer versions are none of its business.
        """
        super().__init__(theme)
        self._backend, self._restarting, self._preferences = backend, restarting, preferences
        self._problem = self._trouble = ""
        self._notices = Notices()
        self._problem_over = QTimer(self, singleShot=True, interval=_PROBLEM_MS)
        self._problem_over.timeout.connect(self._forget_problem)

    def follow(self) -> None:
        """Follow the node, once the banner is in its window: what the pages say aloud comes first."""
        self._backend.problem.connect(self.show_problem)
        self._backend.connection_changed.connect(self._on_connection)
        self._backend.state_changed.connect(self._refresh)
        self._refresh()

    def show_problem(self, message: str) -> None:
        """Say for a while why something failed."""
        self._problem = message
        self._problem_over.start()
        self._refresh()

    def show_trouble(self, message: str) -> None:
        """Say something that lasts, until it is read."""
        self._trouble = message
        self._refresh()

    def _on_connection(self, connection: Connection, _message: str) -> None:
        if connection == "connected":
            self._problem = ""
        self._refresh()

    def _refresh(self, *_: object) -> None:
        connection, notice = self._backend.connection, self._notices.worst(self._backend.state)
        if connection == "restarting":
            self.show_line(self._restarting, "warning")
        elif connection == "failed":
            self.show_line(self._backend.connection_message, "error")
        elif self._problem:
            self.show_line(self._problem, "error", on_dismiss=self._forget_problem)
        elif self._trouble:
            self.show_line(self._trouble, "error", on_dismiss=self._forget_trouble)
        elif notice is not None:
            dismiss = partial(self._forget_notice, notice)
            self.show_line(notice.text, notice.level, on_dismiss=dismiss)
        elif version := self._unread_version():
            read = partial(self.read_of, version)
            self.show_line(update_line(version), on_dismiss=read)
        else:
            self.hide()
        self.refreshed.emit()

    def _unread_version(self) -> str:
        """The newer version that the person has not read of; empty: there is none."""
        if self._preferences is None:
            return ""
        version = offered(self._backend.state)
        return "" if version == self._preferences.current.read_update else version

    def read_of(self, version: str) -> None:
        """Say no more of this version: the person has read of it."""
        if self._preferences is not None and version != self._preferences.current.read_update:
            self._preferences.change(read_update=version)
            self._refresh()

    def _forget_problem(self) -> None:
        self._problem = ""
        self._refresh()

    def _forget_trouble(self) -> None:
        self._trouble = ""
        self._refresh()

    def _forget_notice(self, notice: Notice) -> None:
        self._notices.dismiss(notice)
        self._refresh()
