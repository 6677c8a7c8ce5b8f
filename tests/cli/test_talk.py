"""A conversation: its commands, what it remembers, and a real terminal."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_backend import Server

from potluck.api.prompts import ChatPrompt
from potluck.cli.answering import Answering
from potluck.cli.parser import make_parser
from potluck.cli.talk import Talk
from potluck.launch import find
from potluck.settings import Folders

pytestmark = pytest.mark.net

CORE = Path(__file__).parents[2] / "core"
Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
Typed = Callable[[str], None]


def prompts(server: Server) -> list[list[str]]:
    """Return the contents of the messages of each request."""
    return [
        [turn.content for turn in request.prompt.turns]
        for request in server.backend.generated
        if isinstance(request.prompt, ChatPrompt)
    ]


def test_a_message_may_have_several_lines(server: Server, potluck: Potluck, typed: Typed) -> None:
    typed('one \\\ntwo\n"""three\n\nfour"""\n')
    potluck("chat")
    assert [each[-1] for each in prompts(server)] == ["one \ntwo", "three\n\nfour"]


def test_retry_asks_the_last_message_again(server: Server, potluck: Potluck, typed: Typed) -> None:
    typed("/retry\none\ntwo\n/retry\n")
    potluck("chat")
    assert prompts(server)[1:] == [["one", "Hello, world.", "two"]] * 2


def test_the_system_prompt_is_kept_by_new_and_can_be_removed(
    server: Server, potluck: Potluck, typed: Typed, capsys: Output
) -> None:
    typed("/system\n/system Be brief.\none\n/new\n/system\ntwo\n/system -\n/new\nthree\n")

    potluck("chat")

    assert prompts(server) == [["Be brief.", "one"], ["Be brief.", "two"], ["three"]]
    assert "There is no system prompt.\n" in capsys.readouterr().out


def test_a_conversation_is_saved_and_loaded(
    server: Server, potluck: Potluck, typed: Typed, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    typed(f"one\n/save {file}\n/new\n/load {file}\ntwo\n")

    potluck("chat")

    assert prompts(server)[-1] == ["one", "Hello, world.", "two"]
    assert [each["role"] for each in json.loads(file.read_text())["messages"]] == [
        "user",
        "assistant",
    ]


def test_another_file_is_replaced_only_when_the_person_says_so(
    potluck: Potluck, typed: Typed, tmp_path: Path
) -> None:
    file = tmp_path / "talk.json"
    file.write_text("mine")

    typed(f"/save {file}\nn\n")
    potluck("chat")
    assert file.read_text() == "mine"
    typed(f"/save {file}\ny\n")
    potluck("chat")
    assert file.read_text() != "mine"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/dance", "There is no command /dance."),
        ("/save", "/save FILE"),
        ("/load missing.json", "cannot be read: it is not there."),
        ("/load wrong.json", "is no conversation that /save has written."),
        ("/retry", "There is no message to answer again."),
    ],
)
def test_a_wrong_command_is_told_and_ends_nothing(
    server: Server,
    potluck: Potluck,
    typed: Typed,
    capsys: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.json").write_text('{"messages": [1]}')
    typed(f"{line}\none\n")

    assert potluck("chat") == 0

    assert said in capsys.readouterr().err
    assert prompts(server) == [["one"]]


def test_a_path_at_the_beginning_of_a_message_is_no_command(
    server: Server, potluck: Potluck, typed: Typed
) -> None:
    typed("/etc/hosts is empty\n")
    potluck("chat")
    assert prompts(server) == [["/etc/hosts is empty"]]


def test_the_conversation_goes_on_with_another_model(
    server: Server, potluck: Potluck, typed: Typed, capsys: Output
) -> None:
    typed("/model\n/model other\n")
    potluck("chat")
    assert [each.model for each in server.backend.planned] == [None, "other"]
    assert "guide" in capsys.readouterr().out


class Person:
    """Reads what a person does: lines, and keys that raise."""

    def __init__(self, *does: str | BaseException) -> None:
        self._does = iter(does)

    def read(self) -> str:
        match next(self._does):
            case str(line):
                return line
            case key:
                raise key


def talk(folders: Folders, person: Person) -> Talk:
    client = find(folders)
    assert client is not None
    answering = Answering(client, again=lambda lost: None, load=lambda client: None)
    options = make_parser().parse_args(["chat", "--home", str(folders.home)])
    return Talk(answering, options, person)


def test_ctrl_c_before_an_answer_gives_up_the_line_alone(
    server: Server, folders: Folders, capsys: Output
) -> None:
    person = Person(KeyboardInterrupt(), "one", EOFError())

    assert talk(folders, person).run() == 0

    assert prompts(server) == [["one"]]
    assert "Ctrl-D, or /quit, ends." in capsys.readouterr().err


def test_commands_and_names_of_models_are_completed(server: Server, folders: Folders) -> None:
    words = talk(folders, Person()).completions

    assert list(words("/s")) == ["/system", "/save"]
    assert list(words("/model gui")) == ["guide"]
    assert words("Hello /s") == {}


def test_help_lists_the_commands(potluck: Potluck, typed: Typed, capsys: Output) -> None:
    typed("/help\n")
    potluck("chat")
    shown = capsys.readouterr().out
    assert all(f"  {name}" in shown for name in ("/retry", "/edit", "/load", "/quit"))


# --- a real terminal

READY = "\x1b[?2004h"  # the terminal is told to mark what is pasted: the editor reads


class AtTerminal:
    """`potluck chat` at a terminal of its own."""

    def __init__(self, home: Path, **environ: str) -> None:
        import pty

        self._master, slave = pty.openpty()
        base = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        settings = {"PYTHONPATH": str(CORE), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "potluck", "chat", "--home", str(home)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=base | settings | environ,
        )
        os.close(slave)
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """Return all that was shown up to this text, since the last wait."""
        ends_at = time.monotonic() + 30
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], ends_at - time.monotonic())
            assert ready, f"{text!r} never came: {self.shown!r}"
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminals(folders: Folders) -> Iterator[Callable[..., AtTerminal]]:
    opened: list[AtTerminal] = []

    def open_(**environ: str) -> AtTerminal:
        assert folders.home is not None
        opened.append(AtTerminal(folders.home, **environ))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pty")
def test_at_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends(
    server: Server, terminals: Callable[..., AtTerminal], folders: Folders
) -> None:
    server.backend.script = ("Hello **bold**", " there ")
    server.backend.endless = True
    at = terminals()

    at.wait_for(READY)
    at.type("one\r")
    at.wait_for("\x1b[1mbold\x1b[0m")
    at.wait_for("there ")
    at.process.send_signal(signal.SIGINT)
    at.wait_for("Stopped.")
    assert server.backend.cancelled.wait(30)
    at.wait_for(READY)
    server.backend.endless = False
    at.type("two\r")
    at.wait_for("a second")
    at.wait_for(READY)
    at.type("\x04")

    assert at.process.wait(10) == 0
    assert prompts(server) == [["one"], ["one", "Hello **bold** there ", "two"]]
    assert "+one\n" in (folders.state / "chat_history").read_text()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pty")
def test_no_color_is_plain(server: Server, terminals: Callable[..., AtTerminal]) -> None:
    server.backend.script = ("Hello **bold**",)
    at = terminals(NO_COLOR="1")

    at.wait_for(READY)
    at.type("one\r")
    at.wait_for("Hello **bold**")
