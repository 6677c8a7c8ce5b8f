"""The page of the first start: what should this computer do?"""

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QWidget

from potluck.api.schema import ClusterState
from potluck_app import wording
from potluck_app.theme import Theme
from potluck_app.views.controls import TintedIcon, button, hbox, label, vbox

_CARD_WIDTH = 320


class FirstRunView(QWidget):
    """The page that asks for the role of this computer."""

    def __init__(
        self, theme: Theme, *, on_master: Callable[[], object], on_worker: Callable[[], object]
    ) -> None:
        super().__init__()
        self.setObjectName("first-run")
        self.setProperty("page", "true")
        self.setAccessibleName("Start")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self._theme = theme
        start = button("Start home cluster", "first-start", on_master, kind="primary")
        share = button("Share this computer", "first-share", on_worker)
        self._hardware = label("", "meta")
        self._hardware.setObjectName("first-hardware")
        cards = hbox(spacing=16)
        cards.addStretch(1)
        cards.addWidget(
            self._card(
                "chat",
                "Chat here",
                "Finds your other computers and runs models on all of them together.",
                start,
            )
        )
        cards.addWidget(
            self._card(
                "cluster",
                "Help another computer",
                "Lends its memory and graphics card. Works quietly from the tray.",
                share,
            )
        )
        cards.addStretch(1)
        center = Qt.AlignmentFlag.AlignHCenter
        column = vbox(self)
        column.addStretch(1)
        column.addWidget(label("One AI from all your computers", "title"), 0, center)
        column.addSpacing(14)
        column.addWidget(label("What should this computer do?", "body2"), 0, center)
        column.addSpacing(18)
        column.addLayout(cards)
        column.addSpacing(18)
        column.addWidget(self._hardware, 0, center)
        column.addStretch(1)
        self.show_state(None)

    def show_state(self, state: ClusterState | None) -> None:
        """Show what this computer has, as soon as that is known."""
        parts: list[str] = []
        if state is not None:
            for computer in state.computers:
                if computer.is_self:
                    parts = [
                        f"{device.name} · {wording.size(device.memory_total)}"
                        for device in computer.devices
                    ]
        prefix = f"This computer: {' · '.join(parts)}.   " if parts else ""
        self._hardware.setText(f"{prefix}Nothing leaves your home network.")

    def _card(self, icon: str, title: str, text: str, action: QWidget) -> QFrame:
        frame = QFrame()
        frame.setProperty("card", "true")
        frame.setFixedWidth(_CARD_WIDTH)
        column = vbox(frame, spacing=8)
        column.setContentsMargins(24, 24, 24, 20)
        column.addWidget(TintedIcon(self._theme, icon, 36, lambda: self._theme.tokens.accent))
        column.addSpacing(4)
        column.addWidget(label(title, "section"))
        column.addWidget(label(text, "body2", wrap=True))
        column.addSpacing(20)
        column.addWidget(action)
        return frame
