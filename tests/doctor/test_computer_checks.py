"""What is said of firewall, versions, clock, disk and keys: facts in, findings out."""

from dataclasses import replace
from typing import Any

import pytest

from potluck.api.values.doctor import Finding
from potluck.doctor.diagnosis import diagnose
from potluck.doctor.facts import Disk, Facts, FirewallSeen, Peer, Running, Secrets, Store

LAPTOP = Peer(name="Laptop", is_connected=True)
RUNNING = Running(version="1.0", protocols=(1,))
UFW = FirewallSeen(name="ufw", is_on=True)
DISK = Disk(folder="/cache", holds="weights", free=90 * 10**9)
NOW = 1.8e9


def said(check: str, **changes: Any) -> list[Finding]:
    values: dict[str, Any] = {"version": "1.0", "now": NOW, "port": 47777, **changes}
    return [f for f in diagnose(Facts(**values)).findings if f.check == check]


def codes(check: str, **changes: Any) -> list[str]:
    return [finding.code for finding in said(check, **changes)]


# --- firewall


@pytest.mark.parametrize(
    ("seen", "code", "state"),
    [
        (None, "firewall_unknown", "unknown"),
        (replace(UFW, is_on=None), "firewall_unknown", "unknown"),
        (replace(UFW, is_on=False), "firewall_off", "ok"),
        (UFW, "firewall_on", "warning"),
        (replace(UFW, lets_in=True), "firewall_lets_in", "ok"),
        (replace(UFW, lets_in=False), "firewall_blocks", "problem"),
        (replace(UFW, is_public=True), "firewall_public", "warning"),
        (replace(UFW, is_public=True, lets_in=True), "firewall_public", "warning"),
        (replace(UFW, is_public=True, lets_in=False), "firewall_blocks", "problem"),
    ],
)
def test_what_nobody_has_tried_is_taken_from_the_system(
    seen: FirewallSeen | None, code: str, state: str
) -> None:
    (finding,) = said("firewall", firewall=seen)

    assert (finding.code, finding.state) == (code, state)


@pytest.mark.parametrize("seen", [None, UFW, replace(UFW, lets_in=False)])
def test_a_trial_by_another_computer_says_more_than_the_system(seen: FirewallSeen | None) -> None:
    came = replace(LAPTOP, reaches_us=True)
    failed = replace(LAPTOP, reaches_us=False)

    assert codes("firewall", firewall=seen, peers=(came,)) == ["firewall_reached"]
    (finding,) = said("firewall", firewall=seen, peers=(failed, replace(came, name="Attic")))
    assert finding.state == "problem"
    assert finding.sentence == "Laptop cannot connect to this computer (TCP port 47777)."


def test_a_main_computer_that_is_connected_has_come_through_the_firewall() -> None:
    (finding,) = said("firewall", running=replace(RUNNING, helped=("Desk",)), firewall=UFW)

    assert finding.sentence == "Desk can connect to this computer (TCP port 47777)."


def test_a_main_computer_that_answers_and_does_not_come_is_kept_out() -> None:
    desk = Peer(name="Desk", is_master=True, answer="open")

    (finding,) = said("firewall", peers=(desk,), firewall=UFW)

    assert finding.code == "firewall_master_silent"
    assert finding.command.startswith("sudo ufw allow 47777/tcp")
    assert codes("firewall", peers=(replace(desk, answer="silent"),)) == ["firewall_unknown"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ufw", "ufw allow 4711/tcp"),
        ("firewalld", "--add-port=4711/tcp --add-service=mdns"),
        ("iptables", "--dport 4711 -j ACCEPT"),
        ("nftables", "nft list ruleset"),
        ("Windows Firewall", "localport=4711"),
        ("The firewall of macOS", ""),
    ],
)
def test_the_command_opens_the_port_that_is_in_use(name: str, part: str) -> None:
    (finding,) = said("firewall", firewall=replace(UFW, name=name), port=4711)

    assert part in finding.command
    assert bool(part) == bool(finding.command)


# --- versions


def test_the_own_version_is_told() -> None:
    assert said("versions", running=RUNNING)[0].sentence == "This computer has Potluck 1.0."


@pytest.mark.parametrize(
    ("peer", "older"),
    [
        (replace(LAPTOP, protocol=2), "this computer"),
        (replace(LAPTOP, protocol=0, mismatch="…"), "Laptop"),
        (replace(LAPTOP, mismatch="…"), "Laptop"),
    ],
)
def test_the_older_program_is_to_be_updated(peer: Peer, older: str) -> None:
    (finding,) = said("versions", running=RUNNING, peers=(peer,))

    assert finding.state == "problem"
    assert finding.action == f"Update Potluck on {older}."


def test_a_node_that_runs_on_after_an_update_is_to_be_started_again() -> None:
    (finding,) = said("versions", running=replace(RUNNING, version="0.9"))

    assert finding.sentence == "Potluck 0.9 runs in the background, and 1.0 is installed."


# --- clock


@pytest.mark.parametrize(
    ("ahead_s", "difference"),
    [
        (130.0, "2 minutes"),
        (-119.0, None),
        (-7300.0, "2 hours"),
        (86400.0 * 400, "400 days"),
        (-125.0, "2 minutes"),
    ],
)
def test_clocks_are_compared(ahead_s: float, difference: str | None) -> None:
    (finding,) = said("clock", peers=(replace(LAPTOP, clock_ahead_s=ahead_s),))

    if difference is None:
        assert finding.code == "clock_ok"
    else:
        assert finding.sentence == (
            f"The clocks of this computer and of Laptop differ by {difference}."
        )


def test_a_clock_before_the_program_was_made_is_wrong_without_comparison() -> None:
    (finding,) = said("clock", now=3600.0, peers=(replace(LAPTOP, clock_ahead_s=NOW),))

    assert finding.state == "problem"
    assert "1970-01-01" in finding.sentence


def test_alone_only_the_system_knows_whether_the_clock_is_right() -> None:
    assert codes("clock") == ["clock_alone"]
    assert codes("clock", is_clock_synchronised=True) == ["clock_synchronised"]


# --- disk and keys


@pytest.mark.parametrize(
    ("free", "code"),
    [(5 << 30, "disk_ok"), ((5 << 30) - 1, "disk_low"), ((1 << 30) - 1, "disk_full")],
)
def test_room_on_the_disk_is_judged_by_what_the_store_leaves_free(free: int, code: str) -> None:
    assert codes("disk", disks=(replace(DISK, free=free),)) == [code]


def test_only_the_disk_of_weights_has_to_have_room() -> None:
    small = replace(DISK, holds="logs", free=10**6)

    assert codes("disk", disks=(small, DISK)) == ["disk_ok"]


def test_each_folder_that_cannot_be_written_is_named() -> None:
    locked = replace(DISK, folder="/keys", holds="identity", error="the disk can only be read")

    (finding,) = said("disk", disks=(DISK, locked))

    assert finding.sentence == "Nothing can be written to /keys: the disk can only be read."


def test_a_full_disk_is_one_finding_also_if_nothing_can_be_written() -> None:
    full = replace(DISK, free=0, error="the disk is full")

    assert codes("disk", disks=(full, replace(full, holds="logs"))) == ["disk_full"]


def test_folders_with_the_same_trouble_are_one_finding() -> None:
    locked = replace(DISK, folder="/a", error="the disk can only be read")

    (finding,) = said("disk", disks=(locked, replace(locked, folder="/b", holds="logs")))

    assert finding.data["folder"] == "/a and /b"


def test_a_store_that_has_used_its_quota_says_so() -> None:
    store = Store(used=96, limit=100)

    assert codes("disk", disks=(DISK,), store=store) == ["disk_quota"]
    assert codes("disk", disks=(DISK,), store=replace(store, used=94)) == ["disk_ok"]


def test_keys_that_others_can_read_are_a_problem_with_a_command() -> None:
    assert codes("identity") == []
    assert codes("identity", secrets=Secrets(folder="/keys", is_private=True)) == ["identity_ok"]

    (finding,) = said("identity", secrets=Secrets(folder="/my keys", is_private=False))

    assert finding.command == "chmod -R go-rwx '/my keys'"
