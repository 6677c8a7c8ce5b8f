"""Shells complete commands, options and values from the argument parser."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from potluck.cli.completion import SHELLS, USE, candidates
from potluck.cli.parser import make_parser

Potluck = Callable[..., int]
CORE = Path(__file__).parents[2] / "core"


def words(*line: str) -> list[str]:
    return [word for word, _ in candidates(make_parser(), list(line))]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["ch"], ["chat"]),
        (["models", "p"], ["pull", "prune"]),
        (["--home", "ch", "mod"], ["models"]),  # the value of an option is no command
        (["models", "prune", "--"], ["--help", "--home", "--yes", "--json"]),
        (["chat", "--scheme", "bf"], ["bf16"]),
        (["chat", "--json", "--top"], ["--top-p"]),
        (["completion", "z"], ["zsh"]),
        (["chat", "Hello"], []),
        (["dance", "--nothing"], []),
    ],
)
def test_the_words_that_may_follow(line: list[str], found: list[str]) -> None:
    assert words(*line) == found


def test_hidden_commands_are_not_offered() -> None:
    assert {"chat", "ps", "logs"} < set(words(""))
    assert not {"node", "complete"} & set(words(""))


def test_each_word_has_a_meaning(potluck: Potluck, capsys: pytest.CaptureFixture[str]) -> None:
    assert potluck("complete", "--", "models", "--js") == 0
    assert capsys.readouterr().out == "--json\tanswer in JSON, for scripts\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_the_only_output(
    potluck: Potluck, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert potluck("completion", shell) == 0

    shown = capsys.readouterr()
    assert shown.out == SHELLS[shell]
    assert shown.err == f"{USE[shell]}\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(tmp_path: Path) -> None:
    command = tmp_path / "potluck"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m potluck "$@"\n')
    command.chmod(0o700)
    script = 'eval "$(potluck completion bash 2>/dev/null)"\nCOMP_WORDS=(potluck "$@")\nCOMP_CWORD=$#\n_potluck\nprintf "%s\\n" "${COMPREPLY[@]}"'
    environ = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(CORE),
    }

    def completed(*line: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", script, "bash", *line],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert completed("models", "ver") == ["verify"]
    assert completed("models", "prune", "--") == ["--help", "--home", "--yes", "--json"]
