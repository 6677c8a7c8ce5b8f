"""The commands by which an administrator lets Potluck in through a firewall. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

WINDOWS: Final = "Windows Firewall"
_MDNS_PORT: Final = 5353
FIREWALLS: Final[Mapping[str, tuple[str, ...]]] = {
    "ufw": ("ufw allow {port}/tcp", "ufw allow {mdns}/udp"),
    "firewalld": (
        "firewall-cmd --permanent --add-port={port}/tcp --add-service=mdns",
        "firewall-cmd --reload",
    ),
    "iptables": (
        "iptables -I INPUT -p tcp --dport {port} -j ACCEPT",
        "iptables -I INPUT -p udp --dport {mdns} -j ACCEPT",
    ),
    WINDOWS: (
        'netsh advfirewall firewall add rule name="Potluck" dir=in action=allow'
        " protocol=TCP localport={port} profile=private,domain",
    ),
}


def open_ports(firewall: str, port: int) -> str:
    """The command, to be typed; empty: none is known for this firewall."""
    sudo = "" if firewall == WINDOWS else "sudo "
    return " && ".join(f"{sudo}{line}" for line in lines(firewall, port))


def lines(firewall: str, port: int) -> Sequence[str]:
    """The commands one by one, as an administrator runs them."""
    return [line.format(port=port, mdns=_MDNS_PORT) for line in FIREWALLS.get(firewall, ())]
