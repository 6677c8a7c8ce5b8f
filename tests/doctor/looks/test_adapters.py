"""Interfaces, routes and the router, from what systems print and from this one."""

from pathlib import Path

import pytest

from potluck.doctor.facts import Adapter, AdapterKind
from potluck.doctor.looks import adapters
from potluck.doctor.looks.adapters import (
    gateway_address,
    kind_of,
    leaves_from,
    linux_gateway,
    look_at_adapters,
    look_at_gateway,
    look_at_routes,
    metered_names,
)

ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 0001A8C0 00000000 0001 0 0 100 00FFFFFF 0 0 0
eth0 00000000 0101A8C0 0003 0 0 100 00000000 0 0 0
"""
WINDOWS = """\
Active Routes:
Network Destination        Netmask          Gateway       Interface  Metric
          0.0.0.0          0.0.0.0      192.168.1.1    192.168.1.20     25
"""
NO_TABLE = Path("/no/such/table")


def nothing(*words: str) -> None:
    return None


def test_this_computer_has_loopback() -> None:
    found = look_at_adapters(nothing)

    (loopback,) = (a for a in found if "127.0.0.1/8" in a.networks)
    assert loopback.kind == "loopback"
    assert loopback.is_up


@pytest.mark.parametrize(
    ("name", "flags", "kind"),
    [
        ("eth0", "up,broadcast,multicast", "real"),
        ("en0", "", "real"),
        ("Wi-Fi", "", "real"),
        ("lo", "up,loopback", "loopback"),
        ("Loopback Pseudo-Interface 1", "", "loopback"),
        ("docker0", "", "virtual"),
        ("vEthernet (WSL)", "", "virtual"),
        ("wg0", "", "tunnel"),
        ("utun4", "", "tunnel"),
        ("work", "up,pointopoint,noarp", "tunnel"),
        ("ProtonVPN TUN", "", "tunnel"),
    ],
)
def test_interfaces_are_told_apart(name: str, flags: str, kind: AdapterKind) -> None:
    assert kind_of(name, flags) == kind


def test_metered_interfaces_are_those_that_networkmanager_names() -> None:
    said = (
        "GENERAL.DEVICE:wlan0\nGENERAL.METERED:yes (guessed)\n\n"
        "GENERAL.DEVICE:eth0\nGENERAL.METERED:no\n"
    )

    assert metered_names(lambda *words: said) == {"wlan0"}
    assert metered_names(nothing) == frozenset()


def test_the_router_is_found_in_what_each_system_says(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(ROUTES)
    assert gateway_address(nothing, table) == "192.168.1.1"

    found = gateway_address(lambda *words: WINDOWS, NO_TABLE, platform="win32")
    assert found == "192.168.1.1"
    said = "  gateway: 10.0.0.1\n"
    assert gateway_address(lambda *words: said, NO_TABLE, platform="darwin") == "10.0.0.1"
    assert gateway_address(nothing, NO_TABLE) is None


def test_a_network_without_a_router_has_none() -> None:
    assert linux_gateway("\n".join(ROUTES.splitlines()[:2])) is None


@pytest.mark.net
def test_a_router_answers_if_it_refuses_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "gateway_address", lambda ask, platform: "127.0.0.1")

    gateway = look_at_gateway(nothing, ports=(1,))

    assert gateway is not None
    assert gateway.answers


@pytest.mark.parametrize(
    ("platform", "count"), [("linux", "-c"), ("darwin", "-c"), ("win32", "-n")]
)
def test_a_router_without_open_ports_is_asked_once_in_the_words_of_the_system(
    platform: str, count: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "gateway_address", lambda ask, platform: "10.0.0.1")
    asked: list[tuple[str, ...]] = []

    gateway = look_at_gateway(lambda *words: asked.append(words), ports=(), platform=platform)

    assert gateway is not None
    assert not gateway.answers
    assert [words[:3] for words in asked] == [("ping", count, "1")]


@pytest.mark.net
def test_packets_to_loopback_leave_from_loopback() -> None:
    assert leaves_from("127.0.0.1") == "127.0.0.1"
    assert leaves_from("no address") is None

    real = Adapter(name="x", kind="real", is_up=True, networks=("127.0.0.1/8", "::1/128"))
    assert look_at_routes((real,)).home == {"127.0.0.1": leaves_from("127.0.0.2")}
    down = Adapter(name="x", kind="real", is_up=False, networks=("127.0.0.1/8",))
    assert look_at_routes((down,)).home == {}
