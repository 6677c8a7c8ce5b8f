"""Commands that a person can copy. Each is written for the system that it was found on. Pure."""

import shlex
from typing import Final

from potluck.doctor.facts import FirewallSeen

PRUNE: Final = "potluck models prune"
INSTALL_ENGINE: Final = "potluck engine install"
LIMIT: Final = "potluck models limit 100"
_MDNS_PORT: Final = 5353


def open_ports(firewall: FirewallSeen | None, port: int) -> str:
    """The command that lets Potluck in through this firewall; empty where there is no single one."""
    match firewall.name if firewall is not None else "":
        case "ufw":
            return f"sudo ufw allow {port}/tcp && sudo ufw allow {_MDNS_PORT}/udp"
        case "firewalld":
            return (
                f"sudo firewall-cmd --permanent --add-port={port}/tcp --add-service=mdns"
                " && sudo firewall-cmd --reload"
            )
        case "iptables":
            return (
                f"sudo iptables -I INPUT -p tcp --dport {port} -j ACCEPT"
                f" && sudo iptables -I INPUT -p udp --dport {_MDNS_PORT} -j ACCEPT"
            )
        case "nftables":
            return "sudo nft list ruleset"
        case "Windows Firewall":
            return (
                'netsh advfirewall firewall add rule name="Potluck" dir=in action=allow'
                f" protocol=TCP localport={port} profile=private,domain"
            )
        case _:
            return ""


def make_private(folder: str) -> str:
    """The command that takes away the rights of other users on a folder of keys."""
    return f"chmod -R go-rwx {shlex.quote(folder)}"
