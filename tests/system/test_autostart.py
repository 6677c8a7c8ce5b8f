"""The start with the computer, in the way of each system."""

import plistlib
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from potluck.errors import UsageError
from potluck.system.autostart import (
    Autostart,
    FilePlace,
    RunKey,
    agent_command,
    autostart,
    desktop_entry,
    entry_command,
    launch_agent,
    own_command,
    service_unit,
    unit_command,
)

PLAIN = ["/usr/bin/python3", "-m", "potluck_app", "--hidden"]
ODD = ['/home/Ann Müller/50% \\ $HOME/`py`thon"3', "-m", "potluck", "--home", "a b"]
Make: TypeAlias = Callable[[Sequence[str]], bytes]
Parse: TypeAlias = Callable[[bytes], list[str] | None]


@pytest.mark.parametrize("command", [PLAIN, ODD], ids=["plain", "odd"])
@pytest.mark.parametrize(
    ("make", "parse"),
    [
        (desktop_entry, entry_command),
        (service_unit, unit_command),
        (lambda command: launch_agent("org.potluck", command), agent_command),
    ],
    ids=["desktop", "unit", "agent"],
)
def test_what_is_written_is_read_again(make: Make, parse: Parse, command: list[str]) -> None:
    assert parse(make(command)) == command


def test_the_files_are_as_their_systems_want_them() -> None:
    exec_line = b"Exec=/usr/bin/python3 -m potluck_app --hidden\n"
    assert desktop_entry(PLAIN).startswith(b"[Desktop Entry]\nType=Application\nName=Potluck\n")
    assert desktop_entry(PLAIN).endswith(exec_line)
    assert b'Exec="a\\\\$b" "5%%"\n' in desktop_entry(["a$b", "5%"])
    assert b"ExecStart=/usr/bin/python3 -m potluck_app --hidden\n" in service_unit(PLAIN)
    assert b'ExecStart="a$$b" "5%%"\n' in service_unit(["a$b", "5%"])
    agent = plistlib.loads(launch_agent("org.potluck", PLAIN))
    assert agent == {"Label": "org.potluck", "ProgramArguments": PLAIN, "RunAtLoad": True}


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (entry_command, desktop_entry(PLAIN) + b"Hidden=true\n"),
        (entry_command, desktop_entry(PLAIN) + b"X-GNOME-Autostart-enabled=false\n"),
        (entry_command, b"\xff\x00"),
        (unit_command, b""),
        (agent_command, plistlib.dumps({"ProgramArguments": PLAIN, "Disabled": True})),
        (agent_command, plistlib.dumps({"Label": "x"})),
        (agent_command, b"no list"),
    ],
)
def test_what_is_turned_off_or_cannot_be_read_is_off(parse: Parse, data: bytes) -> None:
    assert parse(data) is None


@pytest.mark.parametrize(
    ("program", "system", "file"),
    [
        ("window", "linux", ".config/autostart/potluck.desktop"),
        ("worker", "linux", ".config/systemd/user/potluck-worker.service"),
        ("window", "darwin", "Library/LaunchAgents/org.potluck.plist"),
        ("worker", "darwin", "Library/LaunchAgents/org.potluck-worker.plist"),
    ],
)
def test_it_is_turned_on_and_off_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any, system: str, file: str
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    start = autostart(program, None, system=system, base=tmp_path)
    assert not start.is_on

    start.set(True)
    start.set(True)
    assert start.is_on
    assert (tmp_path / file).is_file()
    start.set(False)
    start.set(False)

    assert not start.is_on
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


def test_a_unit_without_its_link_is_off(tmp_path: Path) -> None:
    """As after `systemctl --user disable`."""
    start = autostart("worker", None, system="linux", base=tmp_path)
    start.set(True)
    (link,) = tmp_path.rglob("default.target.wants/*")

    link.unlink()

    assert not start.is_on


def test_the_command_is_of_this_installation_and_of_the_same_home(tmp_path: Path) -> None:
    assert own_command("window", None) == [sys.executable, "-m", "potluck_app", "--hidden"]
    there = [sys.executable, "-m", "potluck", "worker", "--home", str(tmp_path)]
    assert own_command("worker", tmp_path) == there


def test_a_command_whose_program_is_gone_is_written_anew_and_no_other(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "potluck.desktop", desktop_entry, entry_command)
    start = Autostart(place, [sys.executable, "-m", "new"])
    start.repair()
    assert place.read() is None  # it was never wanted

    place.write([sys.executable, "-m", "other"])
    start.repair()
    assert place.read() == [sys.executable, "-m", "other"]

    place.write([str(tmp_path / "gone" / "python"), "-m", "old"])
    start.repair()
    assert place.read() == [sys.executable, "-m", "new"]


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be closed so")
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "autostart").write_text("a file in the way")
    place = FilePlace(tmp_path / "autostart" / "potluck.desktop", desktop_entry, entry_command)
    start = Autostart(place, PLAIN)

    with pytest.raises(UsageError, match="start with the computer cannot be changed"):
        start.set(True)
    assert not start.is_on


class Registry:
    """As much of `winreg` as is used."""

    HKEY_CURRENT_USER, KEY_SET_VALUE, REG_SZ = "user", 2, 1

    def __init__(self) -> None:
        self.keys: dict[str, dict[str, Any]] = {}

    @contextmanager
    def OpenKey(self, root: str, key: str, *_: int) -> Any:
        if key not in self.keys:
            raise FileNotFoundError
        yield self.keys[key]

    @contextmanager
    def CreateKey(self, root: str, key: str) -> Any:
        yield self.keys.setdefault(key, {})

    def QueryValueEx(self, key: dict[str, Any], name: str) -> tuple[Any, int]:
        if name not in key:
            raise FileNotFoundError
        return key[name], 1

    def SetValueEx(self, key: dict[str, Any], name: str, _: int, kind: int, value: Any) -> None:
        key[name] = value

    def DeleteValue(self, key: dict[str, Any], name: str) -> None:
        if name not in key:
            raise FileNotFoundError
        del key[name]


def test_windows_has_it_below_the_run_key_and_its_task_manager_may_turn_it_off() -> None:
    registry = Registry()
    place = RunKey(registry, "potluck")
    command = [r"C:\Program Files\Potluck\pythonw.exe", "-m", "potluck_app", "--hidden"]
    assert place.read() is None

    place.write(command)
    assert place.read() == command
    (run,) = registry.keys.values()
    assert run == {"potluck": r'"C:\Program Files\Potluck\pythonw.exe" -m potluck_app --hidden'}

    approved = r"Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
    registry.keys[approved] = {"potluck": bytes([3, 0, 0, 0])}
    assert place.read() is None
    place.write(command)
    assert place.read() == command

    place.remove()
    place.remove()
    assert place.read() is None
