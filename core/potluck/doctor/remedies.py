"""Commands that a person can copy. Each is written for the system that it was found on. Pure."""

import shlex
from typing import Final

from potluck.doctor.facts import FirewallSeen
from potluck.system import firewall_rules

PRUNE: Final = "potluck models prune"
INSTALL_ENGINE: Final = "potluck engine install"
LIMIT: Final = "potluck models limit 100"


def open_ports(firewall: FirewallSeen | None, port: int) -> str:
    """The command that lets Potluck in through this firewall; empty where there is no single one."""
    name = firewall.name if firewall is not None else ""
    return "sudo nft list ruleset" if name == "nftables" else firewall_rules.open_ports(name, port)


def make_private(folder: str) -> str:
    """The command that takes away the rights of other users on a folder of keys."""
    return f"chmod -R go-rwx {shlex.quote(folder)}"
