"""The command line as a whole: versions, help, errors, exit statuses."""

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import Server

import potluck as package
from potluck.cli.completion import HIDDEN
from potluck.cli.parser import make_parser
from potluck.errors import DiskFullError, NotEnoughMemoryError

pytestmark = pytest.mark.net

(_SUBPARSERS,) = (
    action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)
)
COMMANDS = [name for name in _SUBPARSERS.choices if name not in HIDDEN]
Potluck = Callable[..., int]


def test_version_is_told(potluck: Potluck, capsys: pytest.CaptureFixture[str]) -> None:
    assert potluck("--version") == 0
    assert capsys.readouterr().out == f"potluck {package.__version__}\n"


def test_help_names_every_command(potluck: Potluck, capsys: pytest.CaptureFixture[str]) -> None:
    assert potluck("--help") == 0

    shown = capsys.readouterr().out
    assert [command for command in COMMANDS if f"\n  {command} " not in shown] == []
    assert "First steps" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(
    potluck: Potluck, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert potluck(command, "--help") == 0
    assert f"  potluck {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dance"], "no command “dance”"),
        (["chat", "--seed", "x"], "“x” is no whole number of 0 or more"),
        (["chat", "--temperature", "-1"], "“-1” is no number from 0 to 100"),
        (["plan", "--layers", "a=1,b"], "“b” is not NAME=N"),
        (["plan", "--scheme", "int1"], "int1"),
        (["worker", "--memory", "lots"], "“lots” is no size"),
        (["worker", "--name", ""], "1 to 128"),
        (["unpair"], "required"),
        (["serve", "--port", "99999"], "65535"),
    ],
)
def test_wrong_words_are_told_in_a_sentence(
    potluck: Potluck, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert potluck(*words) == 2

    error = capsys.readouterr().err
    assert said in error
    assert "--help" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotEnoughMemoryError(2, 1), 4), (DiskFullError("The disk is full."), 6)],
)
def test_errors_are_one_sentence_and_a_status(
    server: Server,
    potluck: Potluck,
    capsys: pytest.CaptureFixture[str],
    error: DiskFullError,
    status: int,
) -> None:
    server.backend.plan_error = error

    assert potluck("plan", "--json") == status

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"potluck: {error.message}\n"


def test_the_home_may_stand_before_or_after_the_command(tmp_path: Path, potluck: Potluck) -> None:
    assert potluck("models") == 0
    (tmp_path / "file").write_text("")
    assert potluck("models", "--home", str(tmp_path / "file")) == 2


@pytest.mark.slow
def test_a_command_starts_without_what_it_does_not_need() -> None:
    """Each of these takes longer to import than all the rest."""
    code = (
        "import sys\n"
        "def loaded(*names): return sorted(set(names) & set(sys.modules))\n"
        "import potluck.cli\n"
        "print(loaded('msgspec', 'logging', 'prompt_toolkit'))\n"
        "import potluck.cli.chat, potluck.cli.computers, potluck.cli.demo, potluck.demo\n"
        "print(loaded('torch', 'asyncio', 'starlette', 'uvicorn', 'zeroconf', 'cryptography', 'PySide6'))\n"
    )
    core = str(Path(package.__file__).parents[1])
    started = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": core},
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout.split("\n")[:2] == ["[]", "[]"]


def test_a_reader_that_goes_away_is_no_traceback(
    spawn: Callable[..., subprocess.Popen[str]],
) -> None:
    process = spawn("models", "--json")
    assert process.stdout is not None
    process.stdout.close()

    assert process.wait(20) in (0, 1)


def test_without_a_screen_the_window_says_what_works(
    potluck: Potluck, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potluck.cli.window.has_screen", lambda _: False)

    assert potluck() == 2
    assert "potluck demo" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "status"), [("", 0), ("sys.exit(3)", 3)])
def test_the_window_runs_in_this_process_with_the_same_home(
    potluck: Potluck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: int
) -> None:
    name = f"an_app_that_ends_with_{status}"
    app = tmp_path / name
    app.mkdir()
    (app / "__init__.py").write_text("")
    (app / "__main__.py").write_text(
        f"import os, pathlib, sys\npathlib.Path({str(tmp_path)!r}, 'seen').write_text("
        f"os.environ['POTLUCK_HOME'] + repr(sys.argv[1:]))\n{code}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("POTLUCK_HOME", "elsewhere")
    monkeypatch.setattr(sys, "argv", ["potluck", "--home", "x"])
    importlib.invalidate_caches()

    assert potluck(app=name) == status
    assert (tmp_path / "seen").read_text() == f"{tmp_path / 'home'}[]"


def test_a_window_without_qt_says_how_to_add_it(
    potluck: Potluck, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on an older Linux on Arm, where a worker is installed without it."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "PySide6" else find_spec(name)
    )

    assert potluck(app="potluck_app") == 2
    assert "pip install 'potluck[window]'" in capsys.readouterr().err


def test_a_window_that_is_not_installed_is_told(
    potluck: Potluck, capsys: pytest.CaptureFixture[str]
) -> None:
    assert potluck(app="no_such_app") == 2
    assert "not installed" in capsys.readouterr().err
