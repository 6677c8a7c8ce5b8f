"""`chat`, with a fake node."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fake_backend import PLAN, Server
from plan_json import PLAN_JSON

from potluck.api.prompts import ChatPrompt, ChatTurn
from potluck.errors import EngineError, NotEnoughMemoryError

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
Spawn = Callable[..., "subprocess.Popen[str]"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send SIGTERM")


def test_an_answer_as_json_has_exactly_these_fields(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    words = ["--temperature", "0", "--top-p", "0.5", "--max-tokens", "3", "--seed", "7"]

    assert potluck("chat", "--json", *words, "hello", "there") == 0

    assert json.loads(capsys.readouterr().out) == {
        "text": "Hello, world",
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "time_to_first_token_s": 0.25,
        "tokens_per_s": 50.0,
        "plan": PLAN_JSON,
        "streamed_bytes": {"there": 1000},
    }
    (request,) = server.backend.generated
    assert request.prompt == ChatPrompt((ChatTurn(role="user", content="hello there"),))
    assert request.max_tokens == 3
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.0, 0.5, 7)


def test_pictures_go_with_the_prompt(
    server: Server, potluck: Potluck, capsys: Output, tmp_path: Path
) -> None:
    for name in ("one.png", "two.jpg"):
        (tmp_path / name).write_bytes(name.encode())
    images = [word for name in ("one.png", "two.jpg") for word in ("--image", str(tmp_path / name))]

    assert potluck("chat", *images, "What", "is", "it?") == 0

    (request,) = server.backend.generated
    assert isinstance(request.prompt, ChatPrompt)
    (turn,) = request.prompt.turns
    assert turn.content == "What is it?"
    assert [(each.data, each.at) for each in turn.pictures] == [(b"one.png", 0), (b"two.jpg", 0)]
    assert potluck("chat", "--image", str(tmp_path / "none.png"), "hi") == 2
    assert "none.png cannot be read" in capsys.readouterr().err


def test_an_answer_for_people(potluck: Potluck, capsys: Output) -> None:
    assert potluck("chat", "hi") == 0

    shown = capsys.readouterr()
    assert shown.out == "Hello, world.\n"
    assert "50.0 a second" in shown.err
    assert "Sending weights" in shown.err


def test_what_was_asked_for_and_is_not_given_is_said_beside_the_answer(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.loaded = msgspec.structs.replace(PLAN, warnings=("It is loaded with less.",))

    assert potluck("chat", "--context", "5000", "hi") == 0

    shown = capsys.readouterr()
    assert shown.out == "Hello, world.\n"
    assert "It is loaded with less." in shown.err


def test_progress_is_one_line_on_a_terminal(
    potluck: Potluck,
    capsys: Output,
    typed: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    typed("")

    potluck("chat", "hi")

    error = capsys.readouterr().err
    assert "█" in error
    assert "there 400 B of 1 kB, 1 MB/s, 0:00 left" in error
    assert error.count("\n") == 1  # the figures after the answer


def test_the_prompt_may_come_through_a_pipe(
    server: Server, potluck: Potluck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a file\n"))

    assert potluck("chat") == 0
    assert server.backend.generated[0].prompt == ChatPrompt(
        (ChatTurn(role="user", content="from a file"),)
    )


def test_a_prompt_of_the_arguments_stands_before_what_comes_through_a_pipe(
    server: Server, potluck: Potluck, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    server.backend.script = ("**plain**",)
    monkeypatch.setattr(sys, "stdin", io.StringIO("diff\n"))

    assert potluck("chat", "Review", "this") == 0
    assert server.backend.generated[0].prompt == ChatPrompt(
        (ChatTurn(role="user", content="Review this\n\ndiff"),)
    )
    assert capsys.readouterr().out == "**plain**\n"


def test_no_prompt_is_told(
    potluck: Potluck,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    typed: Callable[[str], None],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(" \n"))
        assert potluck("chat") == 2
    assert "no prompt" in capsys.readouterr().err
    typed("")
    assert potluck("chat", "--json") == 2
    assert "PROMPT" in capsys.readouterr().err


def test_a_talk_remembers_what_was_said(
    server: Server, potluck: Potluck, capsys: Output, typed: Callable[[str], None]
) -> None:
    typed("one\n\ntwo\n/new\nthree\n/quit\nfour\n")

    assert potluck("chat") == 0

    turns = [
        [turn.content for turn in request.prompt.turns]
        for request in server.backend.generated
        if isinstance(request.prompt, ChatPrompt)
    ]
    assert turns == [["one"], ["one", "Hello, world.", "two"], ["three"]]
    assert capsys.readouterr().out.count("Hello, world.") == 3


def test_a_talk_goes_on_after_an_error_on_whoever_is_left(
    server: Server, potluck: Potluck, capsys: Output, typed: Callable[[str], None]
) -> None:
    server.backend.fails_after = EngineError("Laptop stopped answering.")
    typed("one\ntwo\n")

    assert potluck("chat", "--workers", "1") == 0  # the end of the input ends it

    assert capsys.readouterr().err.count("Laptop stopped answering.") == 2
    assert [request.workers for request in server.backend.planned] == [1, 0, 0]
    prompts = [request.prompt for request in server.backend.generated]
    assert prompts[1] == ChatPrompt((ChatTurn(role="user", content="two"),))


def test_an_error_in_an_answer_has_a_status(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.fails_after = EngineError("Laptop stopped answering.")

    assert potluck("chat", "hi") == 7
    assert capsys.readouterr().err.endswith("potluck: Laptop stopped answering.\n")


def test_a_model_that_does_not_fit_has_a_status(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.load_error = NotEnoughMemoryError(5_000_000_000, 1_000_000_000)

    assert potluck("chat", "hi") == 4
    assert "4 GB are missing" in capsys.readouterr().err


@posix
def test_ctrl_c_during_an_answer_cancels_it(server: Server, spawn: Spawn) -> None:
    server.backend.endless = True

    process = spawn("chat", "hi")
    assert process.stdout is not None
    shown = ""
    while not shown.endswith("world."):
        shown += (character := process.stdout.read(1))
        assert character
    process.send_signal(signal.SIGINT)

    assert process.wait(10) == 130
    assert server.backend.cancelled.wait(30)


def test_nothing_that_strangers_wrote_steers_the_terminal(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    """An answer, and an error with words of a model's files: no escape sequence, no title."""
    server.backend.script = ("a\x1b[2J\nb", "\x9b31m\x1b]0;title\x07", "\u202edesrever")
    assert potluck("chat", "Hello") == 0
    server.backend.fails_before = EngineError("The template says \x1b]52;c;aGk=\x07.")
    assert potluck("chat", "Hello") == EngineError.exit_status

    shown = capsys.readouterr()
    assert "a\N{REPLACEMENT CHARACTER}[2J\nb" in shown.out
    assert "says \N{REPLACEMENT CHARACTER}]52;c" in shown.err
    assert not set("\x1b\x07\x9b\u202e") & set(shown.out + shown.err)
