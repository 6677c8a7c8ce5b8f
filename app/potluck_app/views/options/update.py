"""The part of the Settings page about newer versions of Potluck: one sentence, and one thing to do."""

from PySide6.QtWidgets import QFrame, QWidget

from potluck import __version__
from potluck.api.values.schema import ClusterState
from potluck.api.values.update import HomesVersion, Update, UpdateRequest
from potluck.errors import format_bytes
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.check_box import CheckBox
from potluck_app.views.widgets.chips import Flow
from potluck_app.views.widgets.controls import announce, button, label
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.words import Described


class UpdateCard(Described, QFrame):
    """What is known of a newer version. Nothing is looked for before a click, or before the box is ticked."""

    def __init__(self, theme: Theme, backend: Backend) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._backend, self._phase = backend, ""
        self.text = label("", "body2", wrap=True, name="update-text")
        self.others = label("", "meta", wrap=True, name="update-others")
        self.meter = Meter(theme, "Progress of the update")
        self.look = button(
            "Look for a newer version",
            "update-look",
            lambda: self._send(UpdateRequest(action="check")),
        )
        self.install = button(
            "Update",
            "update-install",
            lambda: self._send(UpdateRequest(action="install")),
            kind="primary",
        )
        self.stop = button("Stop", "update-stop", lambda: self._send(UpdateRequest(action="stop")))
        self.back = button(
            "Back to the version before",
            "update-back",
            lambda: self._send(UpdateRequest(action="back")),
        )
        self.allowed = CheckBox("Look each day, and follow the main computer", "update-allowed")
        self.allowed.clicked.connect(self._allow)
        buttons = QWidget()
        row = Flow(buttons)
        for each in (self.look, self.install, self.stop, self.back):
            row.addWidget(each)
        vbox(
            label("Updates", "section"),
            self.text,
            self.meter,
            self.others,
            self.allowed,
            buttons,
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
        self.text.setText(_sentence(state, update))
        if update.phase != self._phase and self._phase:
            announce(self, self.text.text())
        self._phase = update.phase
        self.others.setText("\n".join(map(_line, update.computers)))
        self.others.setVisible(bool(update.computers))
        self.meter.setVisible(update.phase == "fetching")
        self.meter.show_fraction(update.fraction)
        is_manual, is_offered = update.phase == "manual", update.phase == "offered"
        is_settled = update.failed or update.left
        self.look.setVisible(update.phase in ("quiet", "fetched") or (is_offered and is_settled))
        self.install.setVisible(is_offered)
        self.stop.setVisible(update.is_working and update.phase != "switching")
        self.back.setVisible(bool(update.before) and not update.is_working)
        self.allowed.setVisible(not is_manual)
        self.allowed.setChecked(update.allowed)
        self.show()

    def _allow(self, on: bool) -> None:
        self._send(UpdateRequest(allowed=on))

    def _send(self, request: UpdateRequest) -> None:
        call = self._backend.call("POST", "/cluster/update", request, Update)
        call.then(failed=self._on_problem)

    def _on_problem(self, problem: Problem) -> None:
        self.show_state(self._backend.live_state)  # the box is as it was before the click
        self._backend.report(problem)


def _line(computer: HomesVersion) -> str:
    """Another computer, its version, and what it does."""
    parts = (f"{computer.name}: {computer.version}", said(computer.message))
    return " · ".join(filter(None, parts))


def _sentence(state: ClusterState, update: Update) -> str:
    """What the card says, in the person's language."""
    if state.node.version != __version__:
        return said(
            f"Potluck {state.node.version} runs now. Close this window and open it again to use it here, too."
        )
    share = wording.percent(update.fraction)
    if update.phase == "fetching" and update.source:
        return said(f"The new version is being fetched: {share}, from {update.source}.")
    if update.phase == "fetching":
        return said(f"The new version is being fetched: {share} of {format_bytes(update.nbytes)}.")
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
