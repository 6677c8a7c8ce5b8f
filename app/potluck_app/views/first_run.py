"""The page of the first start: what should this computer do?"""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QWidget

from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.home.engine import EngineCard
from potluck_app.views.widgets.boxes import STRETCH, WidthLimit, hbox, vbox
from potluck_app.views.widgets.controls import (
    TintedIcon,
    announce,
    button,
    card_frame,
    fill_page,
    label,
    make_page,
)

_CARD_WIDTH, _BETWEEN = 320, 16  # pixels


class FirstRunView(QWidget):
    """The page that asks for the role of this computer."""

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        *,
        on_master: Callable[[], object],
        on_worker: Callable[[], object],
    ) -> None:
        super().__init__()
        make_page(self, "first-run", "Start")
        self._theme = theme
        start = button("Start home cluster", "first-start", on_master, kind="primary")
        share = button("Share this computer", "first-share", on_worker)
        self._hardware = label("", "meta", wrap=True, name="first-hardware")
        self._roles = (
            self._card(
                "chat",
                "Chat here",
                "Finds your other computers and runs models on all of them together.",
                start,
            ),
            self._card(
                "cluster",
                "Help another computer",
                "Lends its memory and graphics card. Works quietly from the tray.",
                share,
            ),
        )
        self._cards = hbox(STRETCH, *self._roles, STRETCH, spacing=_BETWEEN)
        title = label("One AI from all your computers", "title", wrap=True)
        question = label("What should this computer do?", "body2", wrap=True)
        for line in (title, question, self._hardware):
            line.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._problem = label("", "error", wrap=True, name="first-problem")
        self._problem.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        self._problem.hide()
        problem = WidthLimit(self._problem, 2 * _CARD_WIDTH)
        inner = QWidget()
        offer = WidthLimit(EngineCard(theme, backend), 2 * _CARD_WIDTH + _BETWEEN)
        vbox(
            *(title, 14, question, 9, problem, 9, self._cards, 18, self._hardware, 20, offer),
            parent=inner,
        )
        fill_page(self, "Start", STRETCH, inner)
        self.show_state(None)

    def show_state(self, state: ClusterState | None) -> None:
        """Show what this computer has, as soon as that is known."""
        devices = said(wording.devices_line(state.me if state is not None else None))
        parts = (
            f"This computer: {devices}." if devices else "",
            "Nothing leaves your home network.",
        )
        self._hardware.setText("\n".join(said(part) for part in parts if part))

    def show_problem(self, text: str) -> None:
        """Show what is wrong from the beginning, such as a full disk; nothing: all is well."""
        if text and text != self._problem.text():
            announce(self, text)
        self._problem.setText(text)
        self._problem.setVisible(bool(text))

    def resizeEvent(self, event: QResizeEvent) -> None:
        direction = QBoxLayout.Direction
        for card in self._roles:  # a column asks for the height at its own width, which is larger
            card.setMinimumHeight(card.heightForWidth(_CARD_WIDTH))
        is_wide = event.size().width() >= 2 * _CARD_WIDTH + 80
        self._cards.setDirection(direction.LeftToRight if is_wide else direction.TopToBottom)
        for card in self._roles:  # below each other, they are in the middle
            center = Qt.AlignmentFlag.AlignHCenter
            self._cards.setAlignment(card, Qt.AlignmentFlag(0) if is_wide else center)
        super().resizeEvent(event)

    def _card(self, icon: str, title: str, text: str, action: QWidget) -> QFrame:
        frame = card_frame()
        frame.setFixedWidth(_CARD_WIDTH)
        vbox(
            TintedIcon(self._theme, icon, 36, lambda: self._theme.tokens.accent),
            4,
            label(title, "section", wrap=True),
            label(text, "body2", wrap=True),
            20,
            action,
            parent=frame,
            margins=(24, 24, 24, 20),
            spacing=8,
        )
        return frame
