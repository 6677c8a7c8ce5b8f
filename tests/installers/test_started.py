"""The start as a process: what reaches the started program, and what is said."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def stamp_as_done(run: ModuleType, *command_lines: list[str]) -> None:
    """Say in the stamp file that all that these words need is installed."""
    done = {
        step.name: step.key
        for words in command_lines
        for step in run.needed_steps(words, display=False)
    }
    run.STAMPS.write_text(json.dumps(done))


def started(checkout: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Start run.py in a real process, with `program` in the place of the command `potluck`."""
    (checkout / "potluck.py").write_text(program)
    command = [sys.executable, checkout / "installers/run.py", *words]
    environ = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True)


def test_words_and_exit_status_pass_through_and_stdout_is_the_programs_own(
    checkout: Path, run: ModuleType
) -> None:
    stamp_as_done(run, ["invite"])
    program = "import sys; print(*sys.argv[1:]); sys.exit(7)"

    result = started(checkout, program, "invite", "--json")

    assert (result.returncode, result.stdout, result.stderr) == (7, "invite --json\n", "")


@pytest.mark.skipif(os.name != "posix", reason="the last check is a shell script here")
def test_all_checks_run_and_the_first_failure_is_the_status(
    checkout: Path, run: ModuleType
) -> None:
    stamp_as_done(run, ["lint"])
    packages = run.site_packages()[0]
    for name, status in {"ruff": 3, "basedpyright": 5}.items():
        (packages / f"{name}.py").write_text(f"print('{name}', flush=True); exit({status})")
    contracts = run.venv_python().with_name("lint-imports")
    contracts.write_text("#!/bin/sh\necho lint-imports\n")
    contracts.chmod(0o755)

    result = started(checkout, "", "lint")

    assert result.stdout.split() == ["ruff", "ruff", "basedpyright", "lint-imports"]
    assert result.returncode == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux may lack a display")
def test_without_a_display_it_says_so_and_runs_the_demo(checkout: Path, run: ModuleType) -> None:
    stamp_as_done(run, [])

    result = started(checkout, "import sys; print(sys.argv[1:])")

    assert result.stdout == "['demo']\n"
    assert "no display" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_an_interrupt_reaches_the_program_and_nothing_else_is_said(
    checkout: Path, run: ModuleType
) -> None:
    stamp_as_done(run, ["worker"])
    (checkout / "potluck.py").write_text(
        "import signal\n"
        "signal.signal(signal.SIGINT, lambda *_: exit(130))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, checkout / "installers/run.py", "worker"]
    with subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=20) == 130
        assert process.stderr.read() == ""


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_a_sentence(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    checkout.chmod(0o500)

    result = started(checkout, "", "devices")

    checkout.chmod(0o700)
    assert result.returncode == 1
    assert "cannot be written to" in result.stderr
