"""`potluck network`, with a fake node."""

import json
from collections.abc import Callable

import msgspec
import pytest
from fake_backend import Server

from potluck.api.values.network import Interface, Network, NetworkRequest

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
NETWORK = Network(
    interfaces=(
        Interface(name="eth0", medium="cable", mbit=1000, addresses=("192.168.1.20", "fd00::2")),
        Interface(name="wlan0", medium="wifi", addresses=("192.168.1.23",), used=False),
    ),
    chosen=("eth0",),
    port=47777,
)


@pytest.fixture(autouse=True)
def network(server: Server) -> None:
    show(server, NETWORK)


def show(server: Server, network: Network) -> None:
    server.update(node=msgspec.structs.replace(server.backend.current.node, network=network))


def test_the_networks_are_listed_with_what_they_are(potluck: Potluck, capsys: Output) -> None:
    assert potluck("network") == 0

    head, cable, wifi, port = capsys.readouterr().out.splitlines()
    assert head.split() == ["NETWORK", "KIND", "ADDRESSES", "USED"]
    assert cable.split() == ["eth0", "cable,", "1000", "Mbit/s", "192.168.1.20,", "fd00::2", "yes"]
    assert wifi.split() == ["wlan0", "Wi-Fi", "192.168.1.23", "no"]
    assert port == "Other computers reach this one at port 47777."


def test_networks_and_a_port_are_chosen(server: Server, potluck: Potluck) -> None:
    assert potluck("network", "--use", "wlan0,eth0", "--port", "48000") == 0
    assert potluck("network", "--use", "auto", "--port", "auto") == 0

    assert server.backend.networks == [
        NetworkRequest(interfaces=("wlan0", "eth0"), port=48000),
        NetworkRequest(interfaces=(), port=0),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--use", "eth7"), "This computer has no network “eth7”. It has: eth0, wlan0."),
        (("--port", "80"), "is no whole number from 1024 to 65535"),
    ],
)
def test_what_cannot_be_is_refused(
    server: Server, potluck: Potluck, capsys: Output, words: tuple[str, ...], said: str
) -> None:
    assert potluck("network", *words) == 2
    assert said in capsys.readouterr().err
    assert server.backend.networks == []


def test_a_chosen_network_that_is_gone_and_a_port_that_is_taken_are_said(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    problem = "Potluck cannot listen at port 48000: another program uses it."
    show(
        server,
        msgspec.structs.replace(NETWORK, chosen=("usb0",), missing=("usb0",), port_problem=problem),
    )
    assert potluck("network") == 0

    shown = capsys.readouterr().out
    assert "Chosen, and not there now: usb0. Until then, all are used." in shown
    assert problem in shown


def test_a_script_gets_all_of_it(potluck: Potluck, capsys: Output) -> None:
    assert potluck("network", "--json") == 0
    assert json.loads(capsys.readouterr().out)["interfaces"][1]["used"] is False
