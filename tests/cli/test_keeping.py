"""Commands that go on when the node of this computer is lost."""

import argparse
from pathlib import Path

import pytest
from fake_backend import TOKEN

from potluck.cli import keeping
from potluck.cli.keeping import keep_going
from potluck.cli.waits import Waits
from potluck.client import Client, NodeGoneError, NodeSilentError
from potluck.errors import UsageError
from potluck.launch import NodeStartError
from potluck.settings import Folders, NodeFile, remove_node_file, write_node_file

Output = pytest.CaptureFixture[str]


class Home:
    """A home whose nodes are started by appending what each start gives."""

    def __init__(self, folder: Path) -> None:
        self.options = argparse.Namespace(
            home=folder, waits=Waits(restarts=3, restart_s=0.0, poll_s=0.0)
        )
        self.folders = Folders.of(folder)
        self.starts: list[Client | Exception] = []
        self.running: list[Client | Exception] = []  # what each look finds; empty: nothing runs
        self._file = NodeFile(pid=1, port=1, token=TOKEN, version="0")
        write_node_file(self.folders, self._file)

    def find_or_start(self, folders: Folders) -> Client:
        assert folders == self.folders
        started = self.starts.pop(0)
        if isinstance(started, Exception):
            raise started
        return started

    def find(self, folders: Folders) -> Client | None:
        assert folders == self.folders
        found = self.running.pop(0) if self.running else None
        if isinstance(found, Exception):
            raise found
        return found

    def shut_down(self) -> None:
        remove_node_file(self.folders, self._file)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path)
    monkeypatch.setattr(keeping, "find_or_start", home.find_or_start)
    monkeypatch.setattr(keeping, "find", home.find)
    return home


NODES = [Client(port, TOKEN) for port in range(1, 7)]


def test_a_lost_node_is_started_again_and_used_on_until_it_is_shut_down(
    home: Home, capsys: Output
) -> None:
    used: list[tuple[Client, bool]] = []
    home.starts += NODES[1:3]

    def use(client: Client, was_lost: bool) -> None:
        used.append((client, was_lost))
        if client is NODES[1]:
            raise NodeGoneError("It does not answer.")
        if client is NODES[2]:
            home.shut_down()

    keep_going(home.options, NODES[0], use)

    assert used == [(NODES[0], False), (NODES[1], True), (NODES[2], True)]
    said = capsys.readouterr().err
    assert said.count("is started again") == 2
    assert "(try 2 of 3)" in said
    assert said.endswith("Potluck was shut down on this computer.\n")


def test_the_error_of_the_last_try_is_told(home: Home, capsys: Output) -> None:
    home.starts += [NodeStartError(why) for why in ("one", "two", "three")]

    with pytest.raises(NodeStartError, match="three"):
        keep_going(home.options, NODES[0], lambda client, was_lost: None)

    assert capsys.readouterr().err.count("is started again") == 3


def test_a_node_that_is_lost_at_once_each_time_is_given_up(home: Home) -> None:
    home.starts += NODES[1:4]

    with pytest.raises(NodeGoneError, match="ended"):
        keep_going(home.options, NODES[0], lambda client, was_lost: None)

    assert home.starts == []


def test_a_node_that_ran_for_long_gives_all_tries_back(home: Home) -> None:
    home.options.waits = Waits(restarts=1, restart_s=0.0, steady_s=-1.0)
    home.starts += NODES[1:]

    def use(client: Client, was_lost: bool) -> None:
        if client is NODES[-1]:
            home.shut_down()

    keep_going(home.options, NODES[0], use)

    assert home.starts == []


def test_a_node_that_lives_and_is_silent_is_waited_for_however_long(
    home: Home, capsys: Output
) -> None:
    used: list[Client] = []
    home.running += [NodeSilentError("It does not answer.") for _ in range(100)]
    home.running.append(NODES[0])

    def use(client: Client, was_lost: bool) -> None:
        used.append(client)
        if was_lost:
            home.shut_down()
        else:
            raise NodeGoneError("It does not answer.")

    keep_going(home.options, NODES[0], use)

    assert used == [NODES[0], NODES[0]]
    said = capsys.readouterr().err
    assert said.count("This command waits until it answers or ends.") == 1
    assert "is started again" not in said


def test_a_silent_node_that_ends_is_started_again(home: Home) -> None:
    home.running.append(NodeSilentError("It does not answer."))
    home.starts.append(NODES[1])

    def use(client: Client, was_lost: bool) -> None:
        if was_lost:
            assert client is NODES[1]
            home.shut_down()

    keep_going(home.options, NODES[0], use)

    assert home.starts == []


def test_what_the_command_itself_does_wrong_is_not_tried_again(home: Home) -> None:
    def use(client: Client, was_lost: bool) -> None:
        raise UsageError("No such model.")

    with pytest.raises(UsageError, match="No such model"):
        keep_going(home.options, NODES[0], use)
