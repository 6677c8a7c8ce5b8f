"""`ps` and `logs`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import MODEL_ID, PLAN, Server, computer

from potluck.api.values import schema
from potluck.settings import Folders

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]

SERVING = """\
guide: ready, f32, 2,048 tokens of context, 50.0 tokens/s in the last answer
Answers: 2 under way, 1 waiting.
COMPUTER  DEVICE  LAYERS  MEMORY OF THE COMPUTER
here      cpu     0 to 1  2 GB
there     cuda:0  2 to 5  3 GB
Other programs are answered at http://127.0.0.1:8000/v1.
"""


@pytest.fixture
def serving(server: Server) -> Server:
    """A node that answers three prompts with two computers."""
    server.update(
        computers=(
            computer("here", "1", is_self=True, memory_lent=2 * 10**9),
            computer("there", "2", memory_lent=3 * 10**9),
        ),
        model=schema.ModelState(
            name="guide",
            model_id=MODEL_ID,
            state="ready",
            plan=PLAN,
            context=2048,
            tokens_per_s=50.0,
            answering=2,
            waiting=1,
        ),
        listeners=(schema.Listener(host="127.0.0.1", port=8000),),
    )
    return server


def test_what_runs_is_shown_with_places_and_memory(
    serving: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("ps") == 0
    assert capsys.readouterr().out == SERVING


def test_what_runs_as_json(serving: Server, potluck: Potluck, capsys: Output) -> None:
    assert potluck("ps", "--json") == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["running"] is True
    assert shown["model"]["answering"] == 2
    assert shown["memory"] == {"here": 2 * 10**9, "there": 3 * 10**9}


def test_without_a_model_that_is_told(potluck: Potluck, capsys: Output) -> None:
    assert potluck("ps") == 0
    assert capsys.readouterr().out == "No model is loaded. The next prompt loads one.\n"


def test_without_a_node_none_is_started(potluck: Potluck, folders: Folders, capsys: Output) -> None:
    folders.node_file.unlink()

    assert potluck("ps") == 0
    assert capsys.readouterr().out == "Potluck is not running on this computer.\n"
    assert potluck("ps", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"running": False}


@pytest.fixture
def log(folders: Folders) -> Path:
    folders.log_file.write_text("".join(f"line {number}\n" for number in range(100)))
    return folders.log_file


def test_the_last_lines_are_printed(potluck: Potluck, log: Path, capsys: Output) -> None:
    assert potluck("logs", "-n", "2") == 0

    shown = capsys.readouterr()
    assert shown.out == "line 98\nline 99\n"
    assert str(log) in shown.err


def test_the_path_is_printed_alone(potluck: Potluck, log: Path, capsys: Output) -> None:
    assert potluck("logs", "--path") == 0
    assert capsys.readouterr() == (f"{log}\n", "")


def test_a_log_that_is_not_there_is_told(potluck: Potluck, capsys: Output) -> None:
    assert potluck("logs") == 2
    assert "There is no log yet" in capsys.readouterr().err


@pytest.mark.slow
def test_new_lines_follow_also_after_the_log_was_replaced(
    log: Path, spawn: Callable[..., "subprocess.Popen[str]"]
) -> None:
    process = spawn("logs", "-n", "1", "-f")
    assert process.stdout is not None
    lines = iter(process.stdout)
    assert "line 99\n" in (next(lines), next(lines))

    with log.open("a") as file:
        file.write("new\n")
    assert next(lines) == "new\n"
    log.rename(log.with_suffix(".1"))
    log.write_text("in another file\n")
    assert next(lines) == "in another file\n"
