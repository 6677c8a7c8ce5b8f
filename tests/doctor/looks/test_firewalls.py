"""What is read from the words of each system's firewall."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from potluck.doctor.facts import FirewallSeen
from potluck.doctor.looks.firewalls import look_at_firewall
from potluck.system.commands import Ask, ask

PROGRAM = r"C:\Potluck\potluck.exe"
ON = "    EnableFirewall    REG_DWORD    0x1\r\n"
OFF = "    EnableFirewall    REG_DWORD    0x0\r\n"
NFT = """table inet filter {{
\tchain input {{
\t\ttype filter hook input priority filter; policy {policy};
\t\ttcp dport 22 accept
\t}}
\tchain forward {{
\t\ttype filter hook forward priority filter; policy drop;
\t}}
}}"""


def system(answers: Mapping[str, str]) -> Ask:
    """Programs whose answer is that of the first key which is in their words."""

    def answer(*words: str) -> str | None:
        line = " ".join(words)
        return next((said for part, said in answers.items() if part in line), None)

    return answer


def linux(answers: Mapping[str, str], ufw: Path = Path("/no/ufw")) -> FirewallSeen | None:
    return look_at_firewall(47777, ask=system(answers), platform="linux", ufw=ufw)


@pytest.mark.parametrize(
    ("status", "lets_in"),
    [
        (None, None),
        ("Status: active\n22/tcp ALLOW Anywhere\n", None),
        ("47777/tcp                  ALLOW       Anywhere\n", True),
        ("47777                      DENY        Anywhere\n", False),
    ],
)
def test_ufw_is_known_by_its_settings_and_its_rules_to_an_administrator(
    status: str | None, lets_in: bool | None, tmp_path: Path
) -> None:
    settings = tmp_path / "ufw.conf"
    settings.write_text("# ufw\nENABLED=yes\n")

    seen = linux({} if status is None else {"ufw status": status}, settings)

    assert seen == FirewallSeen(name="ufw", is_on=True, lets_in=lets_in)


@pytest.mark.parametrize(("ports", "lets_in"), [("22/tcp 47777/tcp\n", True), ("\n", None)])
def test_firewalld_tells_its_state_and_ports(ports: str, lets_in: bool | None) -> None:
    seen = linux({"--state": "running\n", "--list-ports": ports})

    assert seen == FirewallSeen(name="firewalld", is_on=True, lets_in=lets_in)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"nft list": NFT.format(policy="drop")}, FirewallSeen(name="nftables", is_on=True)),
        ({"nft list": NFT.format(policy="accept")}, FirewallSeen(name="Linux", is_on=False)),
        ({"iptables-save": ":INPUT DROP [0:0]\n"}, FirewallSeen(name="iptables", is_on=True)),
        ({"iptables-save": ":FORWARD DROP [0:0]\n"}, FirewallSeen(name="Linux", is_on=False)),
        ({"is-active nftables": "active\n"}, FirewallSeen(name="nftables", is_on=True)),
        ({}, None),
    ],
)
def test_rules_of_the_kernel_count_if_they_are_about_packets_to_this_computer(
    answers: Mapping[str, str], expected: FirewallSeen | None
) -> None:
    assert linux(answers) == expected


def rule(action: str, *, active: str = "TRUE", app: str = PROGRAM) -> str:
    return f"    {{1}}    REG_SZ    v2.30|Action={action}|Active={active}|Dir=In|App={app}|Name=x|"


@pytest.mark.parametrize(
    ("state", "rules", "expected"),
    [
        (ON, "", (True, None)),
        (OFF, "", (False, None)),
        (ON, rule("Allow"), (True, True)),
        (ON, "\r\n".join((rule("Allow"), rule("Block", app=PROGRAM.upper()))), (True, False)),
        (ON, rule("Block", active="FALSE"), (True, None)),
        (ON, rule("Block", app=r"C:\other.exe"), (True, None)),
    ],
)
def test_windows_is_read_from_the_registry(
    state: str, rules: str, expected: tuple[bool, bool | None]
) -> None:
    answers = {"EnableFirewall": state, "FirewallRules": rules}

    seen = look_at_firewall(1, ask=system(answers), platform="win32", program=PROGRAM)

    assert seen is not None
    assert (seen.is_on, seen.lets_in) == expected


@pytest.mark.parametrize(
    ("said", "is_public"), [("Private\r\nPublic\r\n", True), ("Private", False)]
)
def test_windows_says_which_networks_it_takes_for_public(said: str, is_public: bool) -> None:
    answers = {"EnableFirewall": ON, "NetworkCategory": said}

    seen = look_at_firewall(1, ask=system(answers), platform="win32", program=PROGRAM)

    assert seen is not None
    assert seen.is_public is is_public


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"globalstate": "Firewall is disabled. (State = 0)"}, (False, None)),
        ({"globalstate": "Firewall is enabled. (State = 1)"}, (True, None)),
        ({"globalstate": "State = 1", "appblocked": "is permitted"}, (True, True)),
        ({"globalstate": "State = 1", "appblocked": "is blocked"}, (True, False)),
        ({"globalstate": "State = 1", "blockall": "Block all DISABLED!"}, (True, None)),
        (
            {
                "globalstate": "State = 2",
                "blockall": "Firewall has block all state set to enabled.",
            },
            (True, False),
        ),
    ],
)
def test_macos_tells_of_its_firewall(
    answers: Mapping[str, str], expected: tuple[bool, bool | None]
) -> None:
    seen = look_at_firewall(1, ask=system(answers), platform="darwin")

    assert seen is not None
    assert (seen.is_on, seen.lets_in) == expected


@pytest.mark.parametrize("platform", ["win32", "darwin", "plan9"])
def test_a_system_that_says_nothing_leaves_it_open(platform: str) -> None:
    assert look_at_firewall(1, ask=system({}), platform=platform) is None


def test_a_program_that_is_missing_or_fails_says_nothing() -> None:
    assert ask("no-such-program-of-potluck") is None
    assert ask("false") is None
    assert ask("echo", "well") == "well\n"
