"""Which addresses are announced, which are dialled first, and which never."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from potluck.net.interfaces import (
    ChosenInterfaces,
    Interface,
    announced,
    dialling_order,
    different_networks,
    is_avoided,
    is_usable_v6,
    networks,
    own_interfaces,
)
from potluck.wire.messages import Address

LO4 = Interface("127.0.0.1", 8, 1, is_virtual=False)
LO6 = Interface("::1", 128, 1, is_virtual=False)
LAN = Interface("192.168.1.10", 24, 2, is_virtual=False)
LAN6 = Interface("fd00::10", 64, 2, is_virtual=False)
LOCAL6 = Interface("fe80::10", 64, 2, is_virtual=False)
DOCKER = Interface("172.17.0.1", 16, 3, is_virtual=True)
VPN = Interface("10.8.0.2", 24, 4, is_virtual=True)
OWN = frozenset({LO4, LO6, LAN, LAN6, LOCAL6, DOCKER, VPN})


def test_real_networks_are_announced_first_and_loopback_not() -> None:
    assert announced(OWN) == (
        "192.168.1.10", "fd00::10", "fe80::10", "10.8.0.2", "172.17.0.1",
    )  # fmt: skip


def test_an_address_that_nothing_can_bind_to_is_not_usable_yet() -> None:
    assert not is_usable_v6(("2001:db8::1", 0, 0))  # like a tentative one: EADDRNOTAVAIL


def test_a_computer_without_a_network_announces_loopback() -> None:
    assert announced({LO4, LO6}) == ("127.0.0.1", "::1")


def test_the_same_network_is_dialled_first_and_link_local_last() -> None:
    hosts = ["fe80::77%2", "10.8.0.9", "203.0.113.5", "fd00::77", "192.168.1.77"]

    assert dialling_order(hosts, OWN) == (
        "192.168.1.77", "fd00::77", "203.0.113.5", "10.8.0.9", "fe80::77%2",
    )  # fmt: skip


def test_anothers_docker_bridge_and_loopback_are_not_dialled() -> None:
    assert dialling_order(["172.17.0.1", "127.0.0.1", "192.168.1.77"], OWN) == ("192.168.1.77",)


def test_a_node_on_this_computer_is_dialled_by_loopback_first() -> None:
    assert dialling_order(["192.168.1.10", "172.17.0.1", "fe80::10%2"], OWN) == (
        "127.0.0.1", "::1", "192.168.1.10", "172.17.0.1", "fe80::10%2",
    )  # fmt: skip
    assert dialling_order(["127.0.0.1", "::1"], frozenset({LO4, LO6})) == ("127.0.0.1", "::1")


def test_what_is_no_unicast_address_is_left_out() -> None:
    hosts = ["224.0.0.251", "ff02::fb", "0.0.0.0", "::", "example.org", "../x", "192.168.1.77"]

    assert dialling_order(hosts, OWN) == ("192.168.1.77",)
    assert dialling_order([], OWN) == ()


def different(*hosts: str) -> list[str]:
    addresses = [Address(host=host, port=4000) for host in hosts]
    return [address.host for address in different_networks(addresses)]


def test_one_address_for_each_network_is_worth_measuring() -> None:
    assert different("192.168.1.7", "169.254.3.4", "fd00::7", "fe80::7%2") == [
        "192.168.1.7", "169.254.3.4",
    ]  # fmt: skip
    assert different("fd00::7", "fe80::7%2") == ["fd00::7", "fe80::7%2"]
    assert different("127.0.0.1", "192.168.1.10", "::1") == ["127.0.0.1"]
    assert len(different(*(f"10.0.{n}.1" for n in range(9)))) == 4


def test_multicast_uses_every_interface_and_ipv4_loopback() -> None:
    assert networks(OWN) == ["10.8.0.2", "127.0.0.1", "172.17.0.1", "192.168.1.10", 2]


def test_this_computer_has_loopback() -> None:
    own = own_interfaces()

    assert any(i.is_loopback for i in own)
    assert all(ipaddress.ip_address(i.address) for i in own)


@given(st.lists(st.ip_addresses().map(str), max_size=40))
def test_any_addresses_give_an_order_of_some_of_them(hosts: list[str]) -> None:
    order = dialling_order(hosts, OWN)

    assert len(order) <= 16
    assert len(set(order)) == len(order)
    assert set(order) <= {*hosts, "127.0.0.1", "::1"}


# --- chosen ones

CABLE = Interface("192.168.1.10", 24, 2, is_virtual=False, name="eth0")
CABLE6 = Interface("fe80::10", 64, 2, is_virtual=False, name="eth0")
WIFI = Interface("192.168.7.10", 24, 3, is_virtual=False, name="wlan0")
WIFI6 = Interface("fe80::11", 64, 3, is_virtual=False, name="wlan0")
TAILNET = Interface("100.64.0.5", 10, 4, is_virtual=True, name="tailscale0")
ALL = frozenset({LO4, LO6, CABLE, CABLE6, WIFI, WIFI6, TAILNET})


def chosen(*names: str) -> frozenset[Interface]:
    return ChosenInterfaces(names, lambda: ALL, frozenset)()


def test_only_a_chosen_network_is_announced_and_asked_by_multicast() -> None:
    assert announced(chosen("wlan0")) == ("192.168.7.10", "fe80::11")
    assert networks(chosen("wlan0")) == ["127.0.0.1", "192.168.7.10", 3]
    assert announced(chosen("eth0", "tailscale0")) == ("192.168.1.10", "fe80::10", "100.64.0.5")
    assert chosen() == ALL


def test_nobody_is_dialled_in_a_network_that_is_not_chosen() -> None:
    hosts = [
        "192.168.1.77",
        "192.168.7.77",
        "100.64.0.9",
        "203.0.113.5",
        "fe80::77%2",
        "fe80::77%3",
    ]

    assert dialling_order(hosts, chosen("wlan0")) == (
        "192.168.7.77", "203.0.113.5", "fe80::77%3",
    )  # fmt: skip
    assert not is_avoided("127.0.0.1", chosen("wlan0"))
    assert not is_avoided("attic.local", chosen("wlan0"))


def test_a_network_that_two_interfaces_have_is_used_if_one_of_them_is() -> None:
    too = Interface("192.168.1.11", 24, 5, is_virtual=False, name="wlan1")
    own = ChosenInterfaces(("wlan1",), lambda: frozenset({LO4, CABLE, too}), frozenset)()

    assert dialling_order(["192.168.1.77"], own) == ("192.168.1.77",)


def test_all_networks_are_used_while_no_chosen_one_is_there() -> None:
    interfaces = ChosenInterfaces(("usb0",), lambda: ALL, frozenset)

    assert interfaces() == ALL
    assert interfaces.missing(ALL) == ("usb0",)
    interfaces.names = ("usb0", "eth0")
    assert announced(interfaces()) == ("192.168.1.10", "fe80::10")


def test_an_interface_without_a_cable_or_a_network_is_not_there_though_it_has_addresses() -> None:
    pulled = ChosenInterfaces(("wlan0", "eth0"), lambda: ALL, lambda: {"eth0"})
    assert pulled.missing(ALL) == ("eth0",)
    assert announced(pulled()) == ("192.168.7.10", "fe80::11")

    alone = frozenset({LO4, CABLE, CABLE6, WIFI6})  # Wi-Fi that is in no network
    lost = ChosenInterfaces(("wlan0",), lambda: alone, frozenset)
    assert lost.missing(alone) == ("wlan0",)
    assert lost() == alone
