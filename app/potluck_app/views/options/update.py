"""The part of the Settings page about newer versions of Potluck: one sentence, and one thing to do."""

import time
from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QFrame, QWidget

from potluck import __version__
from potluck.api.values.schema import ClusterState
from potluck.api.values.update import HomesVersion, Update, UpdateRequest
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.viewmodels.going_on import offered
from potluck_app.viewmodels.other_version import Again, to_start_again
from potluck_app.viewmodels.pace import Pace
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.check_box import CheckBox
from potluck_app.views.widgets.controls import announce, button, label
from potluck_app.views.widgets.dialogs import Dialog, confirm
from potluck_app.views.widgets.flow import Flow
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.words import Described

_BEGUN_S = 15.0  # a node that was asked for another version has begun by then


class UpdateCard(Described, QFrame):
    """What is known of a newer version. Nothing is looked for before a click, or before the box is ticked.

    Args:
        on_open_again: opens a window of the version that runs now in place of this one, where that can be
            done; None: it cannot.
        keeps_place: whether that window shows the same page and the same chat.

    Signals:
        seen: the person sees that this version is offered.
    """

    seen = Signal(str)

    def __init__(
        self,
        theme: Theme,
        backend: Backend,
        on_open_again: Callable[[], object] | None = None,
        *,
        keeps_place: bool = True,
    ) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._backend, self._phase, self._offered = backend, "", ""
        self._was_working = False
        self._on_open_again, self._keeps_place = on_open_again, keeps_place
        self._awaited: float | None = None  # when another version was asked for here, monotonic
        self.text = label("", "body2", wrap=True, name="update-text")
        self.others = label("", "meta", wrap=True, name="update-others")
        self.meter = Meter(theme, "Progress of the update")
        self.pace, self._pace = label("", "meta", name="update-pace"), Pace()
        self.look = button(
            "Look for a newer version",
            "update-look",
            lambda: self._send(UpdateRequest(action="check")),
        )
        self.install = button(
            "Update",
            "update-install",
            lambda: self._change_version("install"),
            kind="primary",
        )
        self.stop = button("Stop", "update-stop", self._stop)
        self.back = button(
            "Back to the version before",
            "update-back",
            lambda: self._change_version("back"),
        )
        self.open_again = button(
            "Open Potluck again", "update-open-again", self._open_again, kind="primary"
        )
        self.restart = button("Restart in the background…", "update-restart", self._ask_restart)
        self.allowed = CheckBox(
            "Look once a day, and update when the main computer does", "update-allowed"
        )
        self.allowed.clicked.connect(self._allow)
        self._buttons = QWidget()
        row = Flow(self._buttons)
        self._actions = (
            self.open_again,
            self.restart,
            self.look,
            self.install,
            self.stop,
            self.back,
        )
        for each in self._actions:
            row.addWidget(each)
        vbox(
            label("Updates", "section"),
            self.text,
            self.meter,
            self.pace,
            self.others,
            self.allowed,
            self._buttons,
            parent=self,
            margins=(20, 16, 20, 18),
            spacing=10,
        )
        self.show_state(None)

    def show_state(self, state: ClusterState | None) -> None:
        """Show what the node says; nothing while it says nothing."""
        update = state.update if state is not None else None
        if state is None or update is None:
            self.hide()
            return
        again = to_start_again(state)
        is_old = again == "window"
        self._let_copy(is_command=update.phase in ("fetched", "manual"))
        self.text.setText(self._runs(state, again) if again else _sentence(update))
        if not again and self._has_ended(update):
            self._awaited = None
        if update.phase != self._phase and self._phase:
            announce(self, self.text.text())
        self._phase, self._was_working = update.phase, update.is_working
        self.others.setText("\n".join(map(_line, update.computers)))
        self.others.setVisible(bool(update.computers))
        self.meter.setVisible(update.phase == "fetching")
        self.meter.show_fraction(update.fraction)
        self._show_pace(update)
        is_manual, is_offered = update.phase == "manual", update.phase == "offered"
        is_settled = update.failed or update.left
        looks = update.phase in ("quiet", "fetched") or (is_offered and is_settled)
        self.open_again.setVisible(is_old and self._on_open_again is not None)
        self.restart.setVisible(again == "node")
        self.look.setVisible(looks and not again)
        self.install.setText("Try again" if update.failed else "Update")
        self.install.setVisible(is_offered and not again)
        self.stop.setVisible(update.is_working and update.phase != "switching")
        self.back.setVisible(bool(update.before) and not update.is_working)
        self.allowed.setVisible(not is_manual)
        self.allowed.setChecked(update.allowed)
        self._buttons.setVisible(not all(each.isHidden() for each in self._actions))
        self.show()
        self._offered = "" if again else offered(state)
        self._is_seen()
        if is_old and self._awaited is not None and self.isVisible():
            self._open_again()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._is_seen()

    def _show_pace(self, update: Update) -> None:
        if update.phase != "fetching":
            self._pace.forget()
        comes = update.phase == "fetching" and update.nbytes > 0
        self.pace.setText(self._pace.line(update.done, update.nbytes) if comes else "")
        self.pace.setVisible(bool(self.pace.text()))

    def _let_copy(self, *, is_command: bool) -> None:
        """Let the text be selected if a command is in it. Other texts get spaces at which no line breaks."""
        flags = Qt.TextInteractionFlag
        wanted = flags.TextSelectableByMouse if is_command else flags.NoTextInteraction
        self.text.setTextInteractionFlags(wanted)

    def _is_seen(self) -> None:
        if self._offered and self.isVisible():
            self.seen.emit(self._offered)

    def _runs(self, state: ClusterState, again: Again) -> str:
        """What the window of another version says."""
        runs = state.node.version
        if again == "node":
            return said(
                f"This window is of Potluck {__version__}, and the older {runs} still runs in the background."
                " Restart it there, so that both are of one version."
            )
        if self._on_open_again is None:
            return said(
                f"Potluck {runs} runs now, and this window is still of {__version__}. Close it and open it"
                " again."
            )
        if not self._keeps_place:
            return said(f"Potluck {runs} runs now, and this window is still of {__version__}.")
        return said(
            f"Potluck {runs} runs now, and this window is still of {__version__}. It opens again with this"
            " page and your chat."
        )

    def _has_ended(self, update: Update) -> bool:
        """Whether what was asked for here has come to nothing: the node is at rest, and of the same version."""
        if self._awaited is None or update.is_working:
            return False
        return self._was_working or time.monotonic() - self._awaited > _BEGUN_S

    def _open_again(self) -> None:
        self._awaited = None  # once by itself; then the button is there
        if self._on_open_again is not None:
            self._on_open_again()

    def _ask_restart(self) -> None:
        confirm(
            self,
            title="Restart Potluck in the background?",
            text="A reply that is being written ends, also one that this computer helps with. A loaded model"
            " is loaded again.",
            action="Restart",
            on_confirmed=lambda: self._backend.shut_down().then(failed=self._backend.report),
            kind="primary",
        )

    def _change_version(self, action: Literal["install", "back"]) -> None:
        self._awaited = time.monotonic()
        self._send(UpdateRequest(action=action))

    def _stop(self) -> None:
        self._awaited = None
        self._send(UpdateRequest(action="stop"))

    def _allow(self, on: bool) -> None:
        self._send(UpdateRequest(allowed=on))

    def _send(self, request: UpdateRequest) -> None:
        call = self._backend.call("POST", "/cluster/update", request, Update)
        call.then(failed=lambda problem: self._on_problem(request, problem))

    def _on_problem(self, request: UpdateRequest, problem: Problem) -> None:
        if request.action in ("install", "back"):
            self._awaited = None
        self.show_state(self._backend.live_state)  # the box is as it was before the click
        self._backend.report(problem)


class UpdateDialog(Dialog):
    """The card in the window of a helper, which has no settings."""

    def __init__(
        self,
        parent: QWidget,
        theme: Theme,
        backend: Backend,
        on_open_again: Callable[[], object] | None,
    ) -> None:
        super().__init__(parent, "update-dialog", "Updates")
        self.card = UpdateCard(theme, backend, on_open_again, keeps_place=False)
        self.fill(self.card, buttons=(button("Close", "update-close", self.reject),))
        backend.state_changed.connect(self.card.show_state)
        self.card.show_state(backend.live_state)


def _line(computer: HomesVersion) -> str:
    """Another computer, its version, and what it does."""
    parts = (f"{computer.name}: {computer.version}", said(computer.message))
    return " · ".join(filter(None, parts))


def _sentence(update: Update) -> str:
    """What the card says, in the person's language."""
    share = wording.percent(update.fraction)
    if update.phase == "fetching" and update.source:
        return said(f"The new version is being fetched: {share}, from {update.source}.")
    if update.phase == "fetching":
        return said(f"The new version is being fetched: {share} of {wording.size(update.nbytes)}.")
    if update.phase == "offered" and not (update.failed or update.left):
        return said(_offer(update))
    return said(update.message)


def _offer(update: Update) -> str:
    if update.replaces:
        return (
            f"Potluck {update.version} is there. It replaces this version when nothing is answered, also on those of your"
            " other computers whose owners allow it."
        )
    return f"Potluck {update.version} is there. Its package is fetched and checked, and you install it yourself."
