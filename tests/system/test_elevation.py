"""Which commands an administrator is asked for, by which program, and what came of it."""

import subprocess
from typing import Any, cast

import pytest

from potluck.system import elevation
from potluck.system.elevation import asking, run, shown
from potluck.system.firewall_rules import WINDOWS, open_ports

UFW = "sudo ufw allow 47777/tcp && sudo ufw allow 5353/udp"


@pytest.fixture(autouse=True)
def polkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elevation.shutil, "which", lambda name: f"/usr/bin/{name}")


def test_linux_asks_by_polkit_for_all_commands_at_once() -> None:
    assert open_ports("ufw", 47777) == UFW
    assert asking(UFW, system="linux") == [
        "/usr/bin/pkexec", "--disable-internal-agent", "/bin/sh", "-c",
        "ufw allow 47777/tcp && ufw allow 5353/udp || exit 1",
    ]  # fmt: skip
    words = asking(open_ports("firewalld", 48000), system="linux")
    assert words is not None
    assert words[-1] == (
        "firewall-cmd --permanent --add-port=48000/tcp --add-service=mdns && firewall-cmd --reload"
        " || exit 1"
    )
    assert shown(words).startswith(
        "/usr/bin/pkexec --disable-internal-agent /bin/sh -c 'firewall-cmd --permanent"
    )


def test_windows_asks_by_its_account_control() -> None:
    command = open_ports(WINDOWS, 47777)
    assert command.startswith("netsh advfirewall firewall add rule")
    words = asking(command, system="win32")

    assert words is not None
    assert words[:3] == ["powershell", "-NoProfile", "-Command"]
    assert "Start-Process netsh -ArgumentList 'advfirewall firewall add rule name=" in words[3]
    assert "localport=47777 profile=private,domain' -Verb RunAs" in words[3]
    assert asking(command, system="linux") is None
    assert asking(UFW, system="win32") is None


@pytest.mark.parametrize(
    "command",
    [
        "",
        "sudo nft list ruleset",
        "potluck engine install",
        f"{UFW} && sudo rm -rf /",
        "sudo ufw allow 47777/tcp; sudo ufw allow 5353/udp",
        "sudo ufw allow 47777/tcp && sudo ufw allow 47778/udp",
        "sudo ufw allow $(id)/tcp && sudo ufw allow 5353/udp",
        UFW.upper(),
    ],
)
def test_nothing_but_a_command_of_its_own_is_ever_run(command: str) -> None:
    assert asking(command, system="linux") is None


def test_without_a_program_that_asks_there_is_only_the_command_to_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elevation.shutil, "which", lambda _name: None)
    assert asking(UFW, system="linux") is None
    assert asking(UFW, system="darwin") is None


@pytest.mark.parametrize(
    ("status", "outcome"), [(0, "done"), (1, "failed"), (126, "refused"), (127, "refused")]
)
def test_a_person_may_refuse_and_a_program_may_fail(status: int, outcome: str) -> None:
    assert run(("/bin/sh", "-c", f"exit {status}")) == outcome


def test_a_desktop_that_shows_no_question_has_refused_nothing() -> None:
    says = "Error executing command as another user: No authentication agent found."
    assert run(("/bin/sh", "-c", f"echo {says} >&2; exit 127")) == "unasked"


def test_a_program_that_does_not_start_has_failed() -> None:
    assert run(("/nowhere/pkexec", "true")) == "failed"


def test_a_firewall_that_is_not_there_was_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = asking(UFW, system="linux")
    assert words is not None
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(words[2:]) == "failed"


class Root:
    """A process of root: it does not end in time, and nobody else may end it."""

    def __init__(self, *_: object, **__: object) -> None:
        self.deadlines: list[float | None] = []

    def wait(self, timeout: float | None = None) -> int:
        self.deadlines.append(timeout)
        raise subprocess.TimeoutExpired("pkexec", timeout or 0)

    def kill(self) -> None:
        raise PermissionError


def test_what_has_not_ended_in_time_is_not_known_and_waited_for_no_longer() -> None:
    root = Root()
    assert (
        run(("pkexec", "true"), start=lambda *_, **__: cast("Any", root), wait_s=9.0) == "unknown"
    )
    assert root.deadlines == [9.0]
