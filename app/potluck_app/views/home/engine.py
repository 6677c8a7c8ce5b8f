"""The card about the engine, where it is not installed yet: what is missing, how far it is, and one thing to do."""

from PySide6.QtWidgets import QWidget

from potluck.api.values.engine import Engine, EngineRequest
from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.language import said
from potluck_app.theme import Theme
from potluck_app.views.widgets.boxes import Margins, hbox, vbox
from potluck_app.views.widgets.controls import announce, button, card_frame, label
from potluck_app.views.widgets.folding import Folding
from potluck_app.views.widgets.meter import Meter
from potluck_app.views.widgets.words import Described

_QUIET = ("own", "ready")
_WORDS = 300  # pixels beside the button; narrower words stand above it


class EngineCard(Described, QWidget):
    """Shown as long as this computer has no engine; nothing is fetched without a click.

    Args:
        theme: of the window.
        backend: the node, which has the engine.
        margins: around the card, only while it is shown.
    """

    def __init__(self, theme: Theme, backend: Backend, margins: Margins = 0) -> None:
        super().__init__()
        self._theme, self._backend = theme, backend
        self.text = label("", "body", wrap=True, name="engine-text")
        self.meter = Meter(theme, "Progress of the engine")
        self.install = button("Install", "engine-install", self._install, kind="primary")
        self.stop = button("Stop", "engine-stop", self._stop)
        told, action = QWidget(), QWidget()
        vbox(self.text, self.meter, parent=told, spacing=8)
        hbox(self.install, self.stop, parent=action)
        card = card_frame()
        row = Folding(told, action, lambda: theme.px(_WORDS))
        vbox(row, parent=card, margins=(16, 11, 14, 12))
        vbox(card, parent=self, margins=margins)
        backend.state_changed.connect(self.show_state)
        self._phase = ""
        self.show_state(backend.live_state)

    def show_state(self, state: ClusterState | None) -> None:
        """Show what the node says; nothing while it says nothing."""
        engine = state.engine if state is not None else None
        if engine is None or engine.phase in _QUIET:
            self.hide()
            return
        self.text.setText(_sentence(engine))
        self.setAccessibleName(self.text.text())
        self.meter.setVisible(engine.is_working)
        self.meter.show_fraction(engine.fraction)
        self.install.setText("Try again" if engine.phase == "failed" else "Install")
        self.install.setVisible(engine.phase in ("missing", "failed"))
        self.stop.setVisible(engine.is_working)
        if engine.phase != self._phase:
            announce(self, self.text.text())
        self._phase = engine.phase
        self.show()

    def _install(self) -> None:
        self._ask(EngineRequest(action="install"))

    def _stop(self) -> None:
        self._ask(EngineRequest(action="stop"))

    def _ask(self, request: EngineRequest) -> None:
        call = self._backend.call("POST", "/cluster/engine", request, Engine)
        call.then(failed=self._backend.report)


def _sentence(engine: Engine) -> str:
    """What the card says, in the person's language."""
    share = wording.percent(engine.fraction)
    if engine.phase == "fetching" and engine.source:
        return said(f"The engine is being fetched: {share}, from {engine.source}.")
    if engine.phase == "fetching":
        return said(f"The engine is being fetched: {share}.")
    if engine.phase == "unpacking":
        return said(f"The engine is being unpacked and tried: {share}.")
    if engine.phase == "missing" and engine.nbytes:
        return said(
            "This computer needs its engine, PyTorch, to compute."
            f" {wording.size(engine.nbytes)} are fetched once, from your home or from the Internet."
        )
    return said(engine.message)
