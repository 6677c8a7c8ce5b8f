"""The computer stays awake while it is used."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from potluck.system.awake import RELEASE_S, Awake, hold_by, hold_on_windows, holding

CORE = Path(__file__).parents[2] / "core"


def counted(log: list[str]) -> Awake:
    def hold() -> Callable[[], None]:
        log.append("hold")
        return lambda: log.append("release")

    return Awake(hold)


def test_it_is_held_from_the_first_use_until_some_time_after_the_last_one() -> None:
    log: list[str] = []
    awake = counted(log)
    awake.look(is_used=False, now_s=0.0)
    assert log == []

    for now_s in (1.0, 2.0):
        awake.look(is_used=True, now_s=now_s)
    awake.look(is_used=False, now_s=2.0 + RELEASE_S - 1)
    assert log == ["hold"]

    for extra in (0, 1):
        awake.look(is_used=False, now_s=2.0 + RELEASE_S + extra)
    assert log == ["hold", "release"]
    awake.look(is_used=True, now_s=100.0)
    assert log == ["hold", "release", "hold"]


def test_the_end_releases_it_once() -> None:
    log: list[str] = []
    awake = counted(log)
    awake.end()
    awake.look(is_used=True, now_s=0.0)

    awake.end()
    awake.end()

    assert log == ["hold", "release"]


def test_where_there_is_no_way_nothing_happens() -> None:
    awake = Awake(lambda: None)
    awake.look(is_used=True, now_s=0.0)
    awake.end()

    assert hold_by(["no-such-program-of-potluck"]) is None
    assert hold_on_windows(None) is None


WAITS = "import sys; sys.stdin.read()"
HOLDS = """
import sys
from potluck.system.awake import hold_by
release = hold_by([sys.executable, "-c", "import sys; f = open(sys.argv[1], 'w'); sys.stdin.read()", sys.argv[1]])
sys.stdin.read()
"""


def test_a_program_that_holds_ends_when_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: object, **options: object) -> "subprocess.Popen[bytes]":
        begun.append(popen(*args, **options))  # pyright: ignore[reportArgumentType, reportCallIssue]
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    release = hold_by([sys.executable, "-c", WAITS])
    assert release is not None
    assert begun[0].poll() is None

    release()

    assert begun[0].returncode is not None


@pytest.mark.skipif(sys.platform == "win32", reason="there, no program holds")
def test_it_is_released_when_this_process_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # the program that holds has it open as long as it runs
    os.mkfifo(pipe)
    environ = os.environ | {"PYTHONPATH": str(CORE)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(pipe)], stdin=subprocess.PIPE, env=environ
    )
    with holder, pipe.open() as held:
        holder.kill()
        assert held.read() == ""  # its end


def test_windows_is_told_and_told_again() -> None:
    told: list[int] = []
    windll = SimpleNamespace(
        kernel32=SimpleNamespace(SetThreadExecutionState=lambda state: told.append(state) or 1)
    )

    release = hold_on_windows(windll)
    assert release is not None
    release()

    assert told == [0x80000001, 0x80000000]


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_every_system_has_its_way_or_none(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    assert holding(system)() is None or sys.platform == "win32"
