"""What is said of networks, multicast, VPNs and the way to others: facts in, findings out."""

from dataclasses import replace
from typing import Any

import pytest

from potluck.api.values.doctor import Finding
from potluck.api.values.network import Network
from potluck.doctor.diagnosis import diagnose
from potluck.doctor.facts import (
    Adapter,
    Facts,
    FirewallSeen,
    Gateway,
    MulticastSeen,
    Peer,
    Routes,
    Running,
)
from potluck.wire.messages import Address

CABLE = Adapter(name="eth0", kind="real", is_up=True, networks=("192.168.1.20/24",))
VPN = Adapter(name="wg0", kind="tunnel", is_up=True, networks=("10.8.0.2/24",))
DOCKER = Adapter(name="docker0", kind="virtual", is_up=True, networks=("172.17.0.1/16",))
ASIDE = Routes(default="192.168.1.20", home={"192.168.1.20": "192.168.1.20"})
ASKED = MulticastSeen(adapter="eth0", address="192.168.1.20", heard_itself=True)
LAPTOP = Peer(name="Laptop", addresses=(Address(host="192.168.1.30", port=47777),))
ROUTER = Gateway(address="192.168.1.1", answers=True)


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "version": "1.0",
        "now": 1.8e9,
        "port": 47777,
        "adapters": (CABLE,),
        "routes": ASIDE,
        "multicast": (ASKED,),
        "running": Running(version="1.0", protocols=(1,)),
        **changes,
    }
    return Facts(**values)


def said(check: str, **changes: Any) -> list[Finding]:
    return [f for f in diagnose(facts(**changes)).findings if f.check == check]


def codes(check: str, **changes: Any) -> list[str]:
    return [finding.code for finding in said(check, **changes)]


# --- networks


def test_the_network_and_its_interface_are_named() -> None:
    (finding,) = said("network")

    assert finding.sentence == "This computer is in the network 192.168.1.0/24, by eth0."
    assert finding.state == "ok"


@pytest.mark.parametrize(
    ("adapters", "code"),
    [
        ((), "network_none"),
        ((replace(CABLE, is_up=False),), "network_none"),
        ((replace(CABLE, networks=()),), "network_none"),
        ((DOCKER, VPN), "network_only_virtual"),
        ((replace(CABLE, networks=("169.254.3.4/16", "fe80::1/64")),), "network_self_assigned"),
        ((replace(CABLE, networks=("8.8.4.4/24",)),), "network_public"),
        ((replace(CABLE, networks=("100.64.1.2/10",)),), "network_ok"),
        ((replace(CABLE, networks=("fd00::2/64", "fe80::1/64")),), "network_ipv6"),
        ((replace(CABLE, is_metered=True),), "network_metered"),
        ((CABLE, DOCKER, VPN), "network_ok"),
        ((CABLE, replace(CABLE, name="eth1", networks=("169.254.3.4/16",))), "network_several"),
        (None, "network_unknown"),
    ],
)
def test_each_state_of_the_networks_has_a_finding(
    adapters: tuple[Adapter, ...] | None, code: str
) -> None:
    assert codes("network", adapters=adapters) == [code]


def test_several_networks_are_no_trouble_while_a_computer_is_connected() -> None:
    both = (CABLE, replace(CABLE, name="wlan0", networks=("192.168.2.20/24",)))

    assert codes("network", adapters=both) == ["network_several"]
    assert codes("network", adapters=both, peers=(replace(LAPTOP, is_connected=True),)) == [
        "network_ok"
    ]


# --- what was chosen


def chosen(**values: Any) -> Running:
    return Running(version="1.0", protocols=(1,), network=Network(port=47777, **values))


def test_a_choice_of_networks_is_told_beside_the_networks() -> None:
    assert codes("network", running=chosen(chosen=("eth0",))) == ["network_ok", "network_chosen"]
    assert codes("network", running=chosen()) == ["network_ok"]


def test_a_chosen_network_that_is_not_there_is_a_warning() -> None:
    running = chosen(chosen=("eth0", "usb0"), missing=("usb0",))
    gone, *_ = said("network", running=running)

    assert gone.code == "network_chosen_gone"
    assert gone.sentence == "You have chosen usb0 for Potluck, and it is not there now."


def test_a_chosen_port_that_is_taken_is_a_warning() -> None:
    running = chosen(fixed_port=48000, port_problem="It is taken.")
    taken, *_ = said("network", running=running)

    assert taken.code == "network_port_taken"
    assert "48000" in taken.sentence
    assert "47777" in taken.sentence


# --- multicast


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (ASKED, "multicast_nobody"),
        (replace(ASKED, heard=("192.168.1.9",)), "multicast_ok"),
        (replace(ASKED, heard_itself=False), "multicast_not_heard"),
        (replace(ASKED, heard_itself=False, error="you are not allowed to"), "multicast_not_sent"),
    ],
)
def test_each_outcome_of_a_multicast_question_has_a_finding(seen: MulticastSeen, code: str) -> None:
    assert codes("multicast", multicast=(seen,)) == [code]


def test_macos_that_forbids_the_local_network_is_said_alone() -> None:
    forbidden = replace(ASKED, heard_itself=False, error="…", is_forbidden=True)

    assert codes("multicast", multicast=(forbidden, forbidden)) == ["multicast_forbidden"]


def test_the_interface_that_fails_is_named_beside_the_one_that_works() -> None:
    deaf = replace(ASKED, adapter="wlan0", heard_itself=False)

    bad, good = said("multicast", multicast=(replace(ASKED, heard=("192.168.1.9",)), deaf))

    assert (bad.code, bad.data["adapters"]) == ("multicast_not_heard", "wlan0")
    assert (good.code, good.data["adapters"]) == ("multicast_ok", "eth0")


@pytest.mark.parametrize(
    "reached", [replace(LAPTOP, is_connected=True), replace(LAPTOP, answer="open")]
)
def test_a_network_drops_multicast_if_a_computer_is_reached_and_not_heard(reached: Peer) -> None:
    (finding,) = said("multicast", peers=(reached,))

    assert finding.code == "multicast_dropped"
    assert "Laptop" in finding.sentence


def test_without_any_interface_nothing_is_said_of_multicast() -> None:
    assert codes("multicast", multicast=()) == ["multicast_unknown"]
    assert codes("multicast", multicast=None) == ["multicast_unknown"]


def test_the_command_is_that_of_the_firewall_at_hand() -> None:
    deaf = (replace(ASKED, heard_itself=False),)
    ufw = FirewallSeen(name="ufw", is_on=True)

    (finding,) = said("multicast", multicast=deaf, firewall=ufw)

    assert finding.command == "sudo ufw allow 47777/tcp && sudo ufw allow 5353/udp"


# --- VPN


@pytest.mark.parametrize(
    ("routes", "code"),
    [
        (ASIDE, "vpn_aside"),
        (replace(ASIDE, default="10.8.0.2"), "vpn_default"),
        (Routes(default="10.8.0.2", home={"192.168.1.20": "10.8.0.2"}), "vpn_home"),
        (None, "vpn_unknown"),
    ],
)
def test_a_vpn_is_judged_by_what_it_takes(routes: Routes | None, code: str) -> None:
    assert codes("vpn", adapters=(CABLE, VPN), routes=routes) == [code]


@pytest.mark.parametrize(
    "idle",
    [
        replace(VPN, is_up=False),
        replace(VPN, networks=()),
        replace(VPN, networks=("fe80::1/64",)),  # as macOS always has some
    ],
)
def test_a_vpn_that_is_not_in_use_is_none(idle: Adapter) -> None:
    assert codes("vpn", adapters=(CABLE, idle)) == ["vpn_none"]


# --- the way to others


@pytest.mark.parametrize(
    ("peer", "code"),
    [
        (replace(LAPTOP, is_connected=True), "computers_connected"),
        (replace(LAPTOP, answer="open"), "computers_answer"),
        (replace(LAPTOP, answer="refused"), "computers_refuse"),
        (replace(LAPTOP, answer="silent"), "computers_silent"),
        (replace(LAPTOP, answer="unreachable"), "computers_silent"),
        (replace(LAPTOP, answer="silent", is_found=True), "computers_blocked"),
    ],
)
def test_each_way_that_a_computer_answers_has_a_finding(peer: Peer, code: str) -> None:
    (finding,) = said("computers", peers=(peer,))

    assert finding.code == code
    assert "Laptop" in finding.sentence


def test_addresses_of_one_cable_are_told_only_where_there_is_no_other() -> None:
    cable = Address(host="fe80::1%eth0", port=1)
    silent = replace(LAPTOP, answer="silent")

    both = replace(silent, addresses=(*LAPTOP.addresses, cable))
    assert said("computers", peers=(both,))[0].data["address"] == "192.168.1.30"
    alone = replace(silent, addresses=(cable,))
    assert said("computers", peers=(alone,))[0].data["address"] == "fe80::1%eth0"


def test_a_wifi_keeps_its_devices_apart_if_the_router_answers_and_no_computer_does() -> None:
    silent = replace(LAPTOP, answer="unreachable")
    attic = replace(silent, name="Attic")

    (finding,) = said("computers", peers=(silent, attic), gateway=ROUTER)
    assert finding.code == "computers_isolated"
    assert "Laptop and Attic" in finding.sentence

    off = replace(ROUTER, answers=False)
    assert codes("computers", peers=(silent,), gateway=off) == ["computers_silent"]
    there = replace(attic, answer="open")
    assert codes("computers", peers=(silent, there), gateway=ROUTER) == [
        "computers_silent",
        "computers_answer",
    ]


def test_where_no_computer_is_known_there_is_no_way_to_try() -> None:
    (finding,) = said("computers")

    assert finding.state == "unknown"
    assert "address" in finding.action
    assert codes("computers", running=None) == ["computers_not_asked"]
