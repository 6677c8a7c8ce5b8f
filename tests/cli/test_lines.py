"""Messages of a person: of one line and of several, with an editor, and at a real terminal."""

import os
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from potluck.cli.lines import EditingReader, edited, is_finished, message_of
from potluck.errors import UsageError

posix = pytest.mark.skipif(sys.platform == "win32", reason="the editor is a shell script")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("one line", "one line"),
        ("first\\\nsecond", "first\nsecond"),
        ('"""first\n\n  second"""', "first\n\n  second"),
        ('"""\nonly this\n"""', "only this"),
        ('"""one line"""', "one line"),
        ("", ""),
    ],
)
def test_a_finished_message_is_what_was_meant(typed: str, message: str) -> None:
    assert is_finished(typed)
    assert message_of(typed) == message


@pytest.mark.parametrize("typed", ["first\\", "a\\\nb\\", '"""', '"""a\nb', '"""a\\'])
def test_a_message_goes_on_after_a_backslash_and_in_a_block(typed: str) -> None:
    assert not is_finished(typed)


@contextmanager
def keyboard() -> Generator[PipeInput, None, None]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def no_words(text: str) -> dict[str, str]:
    return {}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("hello\r", "hello"),
        ("a\\\rb\r", "a\nb"),
        ('"""a\rb"""\r', "a\nb"),
        ("a\x1b\rb\r", "a\nb"),  # Alt-Enter
        ("\x1b[200~def f():\n    return\n\x1b[201~\r", "def f():\n    return"),  # pasted
    ],
)
def test_keys_become_a_message(keys: str, message: str) -> None:
    with keyboard() as pipe:
        pipe.send_text(keys)
        assert EditingReader(None, no_words).read() == message


def test_ctrl_d_ends_and_ctrl_c_gives_up_the_line() -> None:
    with keyboard() as pipe:
        pipe.send_text("half\x03")
        with pytest.raises(KeyboardInterrupt):
            EditingReader(None, no_words).read()
        pipe.send_text("\x04")
        with pytest.raises(EOFError):
            EditingReader(None, no_words).read()


def test_the_history_is_found_in_the_next_run_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "state" / "chat_history"
    with keyboard() as pipe:
        pipe.send_text("a\\\rb\r")
        EditingReader(file, no_words).read()

    with keyboard() as pipe:
        pipe.send_text("\x10\r")  # Ctrl-P: as the arrow up
        assert EditingReader(file, no_words).read() == "a\nb"
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@posix
def test_a_text_is_edited_in_the_editor_of_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my editor"
    script.write_text('#!/bin/sh\necho "$1 more" >> "$2"\n')
    script.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{script}' and")

    assert edited("draft\n") == "draft\nand more"


def test_an_editor_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "'my editor")

    with pytest.raises(UsageError, match="VISUAL or EDITOR"):
        edited("")


def test_an_editor_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "no-such-editor")

    with pytest.raises(UsageError, match="no-such-editor failed"):
        edited("")
