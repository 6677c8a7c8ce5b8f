"""The part of the Settings page about the engine: which one computes here, and having it installed anew."""

from PySide6.QtWidgets import QFrame

from potluck.api.values.engine import Engine, EngineRequest
from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.language import said
from potluck_app.views.widgets.boxes import STRETCH, hbox, vbox
from potluck_app.views.widgets.controls import button, label
from potluck_app.views.widgets.dialogs import confirm
from potluck_app.views.widgets.words import Described

_MADE_FOR = {
    "cpu": "for processors",
    "cuda": "for NVIDIA graphics cards",
    "rocm": "for AMD graphics cards",
    "metal": "for Apple silicon",
    "own": "from your own files",
}


class EnginePart(Described, QFrame):
    """What the card at the top of the window does not say: it is there only until an engine is."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._backend, self._nbytes = backend, 0
        self.text = label("", "body2", wrap=True, name="engine-which")
        self.repair = button("Repair…", "engine-repair", self._ask)
        vbox(
            label("Engine", "section"),
            self.text,
            hbox(self.repair, STRETCH),
            parent=self,
            margins=(20, 16, 20, 18),
            spacing=10,
        )
        self.show_state(None)

    def show_state(self, state: ClusterState | None) -> None:
        """Show what the node says; nothing while it says nothing."""
        engine = state.engine if state is not None else None
        self.setVisible(engine is not None)
        if engine is not None:
            self._nbytes = engine.nbytes
            self.text.setText(_sentence(engine))
            is_fetched = engine.phase == "ready" and engine.variant != "own"
            self.repair.setVisible(is_fetched)

    def _ask(self) -> None:
        size = f" ({wording.size(self._nbytes)})" if self._nbytes else ""
        confirm(
            self,
            title="Install the engine anew?",
            text="Do that if models do not load although there is memory. The engine is fetched"
            f" again{size}, from your home or from the Internet, and replaces this one if it works. What"
            " is loaded stays until Potluck is started again.",
            action="Install it anew",
            on_confirmed=self._repair,
            kind="primary",
        )

    def _repair(self) -> None:
        request = EngineRequest(action="repair")
        call = self._backend.call("POST", "/cluster/engine", request, Engine)
        call.then(failed=self._backend.report)


def _sentence(engine: Engine) -> str:
    """Which engine it is, and what the node says of it."""
    which = ""
    if engine.phase == "ready" and engine.version:
        made_for = _MADE_FOR.get(engine.variant)
        which = (
            f"PyTorch {engine.version}, {made_for}." if made_for else f"PyTorch {engine.version}."
        )
    return " ".join(filter(None, (said(which), said(engine.message))))
