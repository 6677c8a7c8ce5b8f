"""By which networks and at which port other computers reach this one, and the choice of them."""

from collections import Counter
from collections.abc import Sequence

from PySide6.QtGui import QIntValidator
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from potluck.api.values.network import LOWEST_PORT, Interface, Network, NetworkRequest
from potluck.api.values.schema import ClusterState
from potluck_app import wording
from potluck_app.backend import Backend
from potluck_app.http import Problem
from potluck_app.views.widgets.boxes import vbox
from potluck_app.views.widgets.chips import Flow
from potluck_app.views.widgets.controls import button, clear, field, label, set_property

_TEXT = (
    "How other computers reach this one. Potluck chooses by itself, and leaves VPNs, Docker and virtual"
    " machines for last."
)
_ONE_ROUTER = "Where a cable and Wi-Fi lead to one network, your system chooses between the two."


class NetworkCard(QFrame):
    """Chooses among the networks of this computer, and a port."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self.setProperty("card", "true")
        self._backend = backend
        self._network = Network()
        self._shown: tuple[tuple[str, str], ...] = ()
        self.choices: dict[str, QPushButton] = {}  # by the name of the network; "": automatic
        self._holder = QWidget()
        self._row = Flow(self._holder)
        self.used = label("", "meta", wrap=True, name="network-used")
        self.automatic = button("Automatic", "port-auto", lambda: self._ask_port(0), kind="choice")
        self.automatic.setCheckable(True)
        self.port = field("field", "port-field", "Port for other computers")
        self.port.setValidator(QIntValidator(LOWEST_PORT, 65535, self))
        self.port.setFixedWidth(80)
        self.port.textChanged.connect(self._check_port)
        self.port.returnPressed.connect(self._fix)
        self.fix = button("Always use this port", "port-fix", self._fix)
        self.line = label("", "meta", wrap=True, name="network-port")
        ports = QWidget()
        port_row = Flow(ports)
        for each in (self.automatic, self.port, self.fix):
            port_row.addWidget(each)
        vbox(
            label("Network", "section"),
            label(_TEXT, "body2", wrap=True),
            self._holder,
            self.used,
            4,
            label("Port", "body2"),
            ports,
            self.line,
            parent=self,
            margins=(20, 16, 20, 18),
            spacing=10,
        )
        self.show_state(None)

    def show_state(self, state: ClusterState | None) -> None:
        """Show what is chosen, and what came of it."""
        network = state.node.network if state is not None else None
        self.setVisible(network is not None)
        if network is None:
            return
        before = self._network
        if (network.port, network.fixed_port) != (before.port, before.fixed_port):
            self.port.setText(str(network.fixed_port or network.port or ""))
        self._network = network
        self._show_choices()
        self.used.setText(_used(network))
        self.automatic.setChecked(network.fixed_port is None)
        self._check_port()
        if network.port_problem is not None:
            self._say(network.port_problem, is_error=True)
        elif self.line.property("kind") != "error":
            self._say(f"Other computers reach this one at port {network.port}.")

    def _show_choices(self) -> None:
        shown = _choices(self._network)
        if shown != self._shown:
            self._shown = shown
            clear(self._row)
            self.choices = {name: self._choice(name, text) for name, text in shown}
        for name, each in self.choices.items():
            each.setChecked(name in self._network.chosen or not (name or self._network.chosen))

    def _choice(self, name: str, text: str) -> QPushButton:
        item = button(text, f"network-{name or 'auto'}", lambda: self._choose(name), kind="choice")
        item.setCheckable(True)
        self._row.addWidget(item)
        return item

    def _choose(self, name: str) -> None:
        """Use a network, or not any more; without a name, use all of them."""
        before = self._network.chosen if name else ()
        chosen = tuple(n for n in before if n != name)
        if name and name not in before:
            chosen = (*before, name)
        self._ask(NetworkRequest(interfaces=chosen))

    def _check_port(self) -> None:
        is_new = self.port.text() != str(self._network.fixed_port or "")
        self.fix.setEnabled(self.port.hasAcceptableInput() and is_new)

    def _fix(self) -> None:
        if self.fix.isEnabled():
            self._ask_port(int(self.port.text()))

    def _ask_port(self, port: int) -> None:
        self._say("")
        self._ask(NetworkRequest(port=port))

    def _ask(self, request: NetworkRequest) -> None:
        self._show_choices()  # a click checks a button: the node says what is checked
        self.automatic.setChecked(self._network.fixed_port is None)
        self._backend.call("POST", "/cluster/network", request).then(failed=self._on_problem)

    def _on_problem(self, problem: Problem) -> None:
        self._say(problem.message, is_error=True)

    def _say(self, text: str, *, is_error: bool = False) -> None:
        self.line.setText(text)
        set_property(self.line, "kind", "error" if is_error else "meta")


def _choices(network: Network) -> tuple[tuple[str, str], ...]:
    """The name and the text of each choice. Virtual networks are offered where there are no others, or one is chosen."""
    is_all = all(each.medium == "virtual" for each in network.interfaces)
    offered = [
        each
        for each in network.interfaces
        if is_all or each.medium != "virtual" or each.name in network.chosen
    ]
    titles = Counter(wording.medium(each.medium) or each.name for each in offered)
    gone = [(name, f"{name} · not there now") for name in network.missing]
    return (
        ("", "Automatic"),
        *((each.name, _text(each, titles)) for each in offered),
        *((name, text) for name, text in gone),
    )


def _text(interface: Interface, titles: Counter[str]) -> str:
    title = wording.medium(interface.medium) or interface.name
    if titles[title] > 1:
        title = interface.name
    return f"{title} · {interface.addresses[0]}"


def _used(network: Network) -> str:
    """What is used now, and why."""
    if network.missing and len(network.missing) == len(network.chosen):
        gone = wording.listing(network.missing)
        return f"{gone} is not there now. Until it is back, Potluck uses every network."
    if network.chosen:
        return f"Potluck uses no other network of this computer. {_ONE_ROUTER}"
    return _automatic(network.interfaces)


def _automatic(interfaces: Sequence[Interface]) -> str:
    real = [each for each in interfaces if each.medium not in ("vpn", "virtual")]
    best = next(iter(real or interfaces), None)
    if best is None:
        return "This computer is in no network."
    title = wording.medium(best.medium) or best.name
    return f"Every network is used. First comes {title} ({best.addresses[0]})."
