"""`network`: by which networks and at which port other computers reach this one, and the choice of them."""

import argparse
from collections.abc import Mapping
from typing import Final

from potluck.api.values.network import Interface, MediumKind, Network, NetworkRequest
from potluck.cli.computers import open_client
from potluck.cli.terminal import put, put_json, put_table
from potluck.client import Client
from potluck.errors import UsageError

_MEDIA: Final[Mapping[MediumKind, str]] = {
    "wifi": "Wi-Fi",
    "cable": "cable",
    "vpn": "VPN",
    "virtual": "virtual",
    "": "",
}


def network(options: argparse.Namespace) -> int:
    """List the networks, after a choice if one was asked for."""
    client, _ = open_client(options)
    if options.use is not None or options.port is not None:
        _choose(client, options)
    seen = client.state().node.network or Network()
    if options.json:
        put_json(seen)
        return 0
    put_table(("NETWORK", "KIND", "ADDRESSES", "USED"), map(_row, seen.interfaces))
    if seen.missing:
        rest = "" if len(seen.missing) < len(seen.chosen) else " Until then, all are used."
        put(f"Chosen, and not there now: {', '.join(seen.missing)}.{rest}")
    fixed = "" if seen.fixed_port is None else ", as chosen"
    put(seen.port_problem or f"Other computers reach this one at port {seen.port}{fixed}.")
    return 0


def _choose(client: Client, options: argparse.Namespace) -> None:
    seen = client.state().node.network or Network()
    known = {interface.name for interface in seen.interfaces} | set(seen.chosen)
    if unknown := sorted(set(options.use or ()) - known):
        there = ", ".join(sorted(known)) or "none"
        raise UsageError(f"This computer has no network “{unknown[0]}”. It has: {there}.")
    client.change_network(NetworkRequest(interfaces=options.use, port=options.port))


def _row(interface: Interface) -> tuple[str, ...]:
    speed = f", {interface.mbit} Mbit/s" if interface.mbit is not None else ""
    return (
        interface.name,
        f"{_MEDIA[interface.medium]}{speed}",
        ", ".join(interface.addresses),
        "yes" if interface.used else "no",
    )
