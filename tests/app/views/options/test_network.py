"""The part of the Settings page about the networks of this computer and its port."""

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot
from scripted_window import ScriptedBackend, home

from potluck.api.values.network import Interface, Network, NetworkRequest
from potluck.api.values.schema import ClusterState
from potluck_app import language
from potluck_app.http import Problem
from potluck_app.language import said
from potluck_app.views.options.network import NetworkCard

pytestmark = pytest.mark.qt

LEFT = Qt.MouseButton.LeftButton
PATH = "/cluster/network"
NETWORK = Network(
    interfaces=(
        Interface(name="enp3s0", medium="cable", mbit=1000, addresses=("192.168.1.20", "fd00::2")),
        Interface(name="wlp2s0", medium="wifi", addresses=("192.168.1.23",)),
        Interface(name="wg0", medium="vpn", addresses=("10.8.0.2",)),
        Interface(name="docker0", medium="virtual", addresses=("172.17.0.1",)),
    ),
    port=47777,
)


def at(network: Network | None) -> ClusterState:
    state = home()
    return replace(state, node=replace(state.node, network=network))


@pytest.fixture
def card(qtbot: QtBot, backend: ScriptedBackend) -> NetworkCard:
    card = NetworkCard(backend)
    qtbot.addWidget(card)
    card.show_state(at(NETWORK))
    card.show()
    return card


def texts(card: NetworkCard) -> list[str]:
    return [each.text() for each in card.choices.values()]


def checked(card: NetworkCard) -> list[str]:
    return [name for name, each in card.choices.items() if each.isChecked()]


def test_it_says_what_automatic_has_chosen(card: NetworkCard) -> None:
    assert texts(card) == [
        "Automatic", "Cable · 192.168.1.20", "Wi-Fi · 192.168.1.23", "VPN · 10.8.0.2",
    ]  # fmt: skip
    assert checked(card) == [""]
    assert card.used.text() == "Every network is used. First comes Cable (192.168.1.20)."
    assert card.automatic.isChecked()
    assert card.line.text() == "Other computers reach this one at port 47777."


def test_networks_are_added_and_taken_away_one_by_one(
    card: NetworkCard, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    qtbot.mouseClick(card.choices["wlp2s0"], LEFT)
    assert backend.last(PATH).body == NetworkRequest(interfaces=("wlp2s0",))
    assert checked(card) == [""]  # until the node says so

    card.show_state(at(replace(NETWORK, chosen=("wlp2s0",))))
    assert checked(card) == ["wlp2s0"]
    assert card.used.text() == (
        "Potluck uses no other network of this computer. Where a cable and Wi-Fi lead to one network, your"
        " system chooses between the two."
    )
    qtbot.mouseClick(card.choices["wg0"], LEFT)
    assert backend.last(PATH).body == NetworkRequest(interfaces=("wlp2s0", "wg0"))
    qtbot.mouseClick(card.choices["wlp2s0"], LEFT)
    assert backend.last(PATH).body == NetworkRequest(interfaces=())
    qtbot.mouseClick(card.choices[""], LEFT)
    assert backend.last(PATH).body == NetworkRequest(interfaces=())


def test_networks_of_one_kind_are_told_apart_by_their_names(card: NetworkCard) -> None:
    second = Interface(name="enx00e04c", medium="cable", addresses=("192.168.7.20",))
    unknown = Interface(name="en7", addresses=("192.168.8.20",))
    card.show_state(at(replace(NETWORK, interfaces=(NETWORK.interfaces[0], second, unknown))))

    assert texts(card)[1:] == [
        "enp3s0 · 192.168.1.20",
        "enx00e04c · 192.168.7.20",
        "en7 · 192.168.8.20",
    ]


def test_virtual_networks_are_offered_where_there_is_no_other_or_one_is_chosen(
    card: NetworkCard,
) -> None:
    docker = NETWORK.interfaces[-1]
    card.show_state(at(Network(interfaces=(docker,))))
    assert texts(card) == ["Automatic", "docker0 · 172.17.0.1"]
    card.show_state(at(replace(NETWORK, chosen=("docker0",))))
    assert "docker0" in card.choices


def test_a_chosen_network_that_is_gone_can_be_seen_and_given_up(
    card: NetworkCard, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    card.show_state(at(replace(NETWORK, chosen=("usb0",), missing=("usb0",))))

    assert card.choices["usb0"].text() == "usb0 · not there now"
    assert checked(card) == ["usb0"]
    assert (
        card.used.text() == "usb0 is not there now. Until it is back, Potluck uses every network."
    )
    qtbot.mouseClick(card.choices["usb0"], LEFT)
    assert backend.last(PATH).body == NetworkRequest(interfaces=())


def test_a_port_is_fixed_and_set_free(
    card: NetworkCard, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    assert card.port.text() == "47777"
    card.port.setText("80")
    assert not card.fix.isEnabled()
    card.port.setText("48000")
    qtbot.mouseClick(card.fix, LEFT)
    assert backend.last(PATH).body == NetworkRequest(port=48000)

    card.show_state(at(replace(NETWORK, port=48000, fixed_port=48000)))
    assert not card.automatic.isChecked()
    assert not card.fix.isEnabled()
    qtbot.mouseClick(card.automatic, LEFT)
    assert backend.last(PATH).body == NetworkRequest(port=0)


def test_a_port_that_is_taken_is_said_where_it_was_chosen(
    card: NetworkCard, backend: ScriptedBackend, qtbot: QtBot
) -> None:
    card.port.setText("48000")
    qtbot.mouseClick(card.fix, LEFT)
    why = "Potluck cannot listen at port 48000: another program uses it. Choose another."
    backend.last(PATH).call.failed.emit(Problem(why))
    card.show_state(at(NETWORK))  # as comes all the time

    assert card.line.text() == why
    assert card.port.text() == "48000"  # to be corrected
    card.show_state(at(replace(NETWORK, fixed_port=48000, port_problem=f"{why} It is so.")))
    assert card.line.text() == f"{why} It is so."


def test_a_node_that_does_not_say_has_no_such_part(card: NetworkCard) -> None:
    card.show_state(at(None))
    assert card.isHidden()


def test_it_speaks_german(card: NetworkCard, qapp: QApplication) -> None:
    translators = language.use(qapp, "de")
    card.show_state(at(replace(NETWORK, interfaces=NETWORK.interfaces[:1])))
    shown = [said(each.text()) for each in (card.used, card.choices["enp3s0"])]
    for translator in translators:
        qapp.removeTranslator(translator)

    assert shown == [
        "Jedes Netz wird benutzt. Zuerst kommt Kabel (192.168.1.20).",
        "Kabel · 192.168.1.20",
    ]
