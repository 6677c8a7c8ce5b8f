"""What the system says of its firewall. No right of an administrator is asked for."""

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from potluck.doctor.facts import FirewallSeen
from potluck.system.commands import Ask, ask

WINDOWS, MACOS = "Windows Firewall", "The firewall of macOS"
_POLICY: Final = r"HKLM\SYSTEM\CurrentControlSet\Services\SharedAccess\Parameters\FirewallPolicy"
_CATEGORY: Final = "(Get-NetConnectionProfile).NetworkCategory"  # not in the user's language
_UFW: Final = Path("/etc/ufw/ufw.conf")
_FILTER: Final = "socketfilterfw"
_RULES: Final = {
    "nftables": ("nft", "list", "ruleset"),
    "iptables": ("iptables-save", "-t", "filter"),
}
_DROPS: Final = re.compile(r"\bpolicy drop\b|\bdrop\b|\breject\b|\bDROP\b|\bREJECT\b")


def look_at_firewall(
    port: int,
    *,
    ask: Ask = ask,
    platform: str = sys.platform,
    program: str = sys.executable,
    ufw: Path = _UFW,
) -> FirewallSeen | None:
    """The firewall of this system; None: nothing can be said of it.

    Args:
        port: at which Potluck listens.
        ask: runs a program of the system.
        platform: as `sys.platform`.
        program: the path of the program that listens.
        ufw: the settings of ufw, which everybody may read.
    """
    match platform:
        case "win32":
            return _windows(ask, program)
        case "darwin":
            return _macos(ask, program)
        case "linux":
            return _linux(ask, port, ufw)
        case _:
            return None


def _linux(ask: Ask, port: int, ufw: Path) -> FirewallSeen | None:
    with suppress(OSError):
        if re.search(r"^ENABLED\s*=\s*yes", ufw.read_text(), re.MULTILINE | re.IGNORECASE):
            return FirewallSeen(
                name="ufw", is_on=True, lets_in=_ufw_rule(ask("ufw", "status"), port)
            )
    if (ask("firewall-cmd", "--state") or "").strip() == "running":
        ports = ask("firewall-cmd", "--list-ports")
        return FirewallSeen(name="firewalld", is_on=True, lets_in=_listed(ports, port))
    answers = {name: ask(*words) for name, words in _RULES.items()}  # of an administrator alone
    for name, rules in answers.items():
        if rules is not None and _DROPS.search(_input_rules(rules)):
            return FirewallSeen(name=name, is_on=True)
    if (ask("systemctl", "is-active", "nftables") or "").strip() == "active":
        return FirewallSeen(name="nftables", is_on=True)
    is_known = any(rules is not None for rules in answers.values())
    return FirewallSeen(name="Linux", is_on=False) if is_known else None


def _input_rules(rules: str) -> str:
    """The part of nft's and iptables' rules that is about packets to this computer."""
    chains = re.findall(r"chain [^{]*\{[^}]*hook input[^}]*\}", rules)
    lines = re.findall(r"^(?::INPUT|-A INPUT) .*$", rules, re.MULTILINE)
    return "\n".join((*chains, *lines))


def _ufw_rule(status: str | None, port: int) -> bool | None:
    """Whether a rule of ufw is about this port; None: only an administrator may see."""
    for line in (status or "").splitlines():
        if re.match(rf"{port}(/tcp)?\s", line):
            return "ALLOW" in line
    return None


def _listed(ports: str | None, port: int) -> bool | None:
    return True if ports is not None and f"{port}/tcp" in ports.split() else None


# --- Windows


def _windows(ask: Ask, program: str) -> FirewallSeen | None:
    """Read the registry: it says the same in every language, and everybody may read it."""
    profiles = ("StandardProfile", "PublicProfile", "DomainProfile")
    answers = [ask("reg", "query", rf"{_POLICY}\{p}", "/v", "EnableFirewall") for p in profiles]
    if not any(answers):
        return None
    is_on = any(re.search(r"EnableFirewall\s+REG_DWORD\s+0x1\b", said or "") for said in answers)
    rules = ask("reg", "query", rf"{_POLICY}\FirewallRules") or ""
    networks = ask("powershell", "-NoProfile", "-Command", _CATEGORY) or ""
    return FirewallSeen(
        name=WINDOWS,
        is_on=is_on,
        lets_in=_windows_rule(rules, program),
        is_public="Public" in networks,
    )


def _windows_rule(rules: str, program: str) -> bool | None:
    """Whether the rules of a program let it hear others; a rule that blocks counts more than others."""
    actions: Sequence[str] = [
        fields.get("Action", "")
        for fields in map(_fields, rules.splitlines())
        if fields.get("Dir") == "In"
        and fields.get("Active") == "TRUE"
        and fields.get("App", "").casefold() == program.casefold()
    ]
    if "Block" in actions:
        return False
    return True if "Allow" in actions else None


def _fields(line: str) -> dict[str, str]:
    """Read `v2.30|Action=Allow|Active=TRUE|Dir=In|App=…|…`, one rule of the registry."""
    parts = (part.partition("=") for part in line.split("|")[1:])
    return {key: value for key, _, value in parts}


# --- macOS


def _macos(ask: Ask, program: str) -> FirewallSeen | None:
    state = ask(_FILTER, "--getglobalstate")
    if state is None:
        return None
    is_on = "State = 0" not in state
    all_blocked = (ask(_FILTER, "--getblockall") or "").lower()
    said = (ask(_FILTER, "--getappblocked", program) or "").lower()
    lets_in = True if "permitted" in said else None
    if re.search(r"all (state set to )?enabled|set to block all", all_blocked) or "blocked" in said:
        lets_in = False
    return FirewallSeen(name=MACOS, is_on=is_on, lets_in=lets_in)
