"""A fake node that the commands find in a home of their own."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import TOKEN, Server

from potluck.cli import main
from potluck.cli.waits import Waits
from potluck.settings import Folders, NodeFile, write_node_file

CORE = Path(__file__).parents[2] / "core"


class Terminal(io.StringIO):
    """A person at the terminal, who has typed this."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folders(tmp_path: Path, server: Server) -> Folders:
    folders = Folders.of(tmp_path / "home", {})
    node = NodeFile(pid=os.getpid(), port=server.port, token=TOKEN, version="0")
    write_node_file(folders, node)
    return folders


@pytest.fixture
def potluck(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Run a command line in this process, with values in place of the parser's; its exit status.

    Nothing is on standard input, unless the test puts something there.
    """
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    soon = Waits(poll_s=0.01, discovery_s=0.3, pairing_s=5.0)
    before = signal.getsignal(signal.SIGTERM)

    def run(*words: str, **values: object) -> int:
        try:
            return main(["--home", str(folders.home), *words], **({"waits": soon} | values))
        except SystemExit as ended:
            return int(ended.code or 0)

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sit a person at the terminal who types this."""

    def sit(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)

    return sit


@pytest.fixture
def spawn(folders: Folders) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command that holds, as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "potluck", *words, "--home", str(folders.home)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CORE), "PYTHONIOENCODING": "utf-8"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        with process:
            pass
