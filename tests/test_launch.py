"""Finding and starting a node, with a fake one as the process."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fake_backend import TOKEN, Server, serving
from releases import make_root, make_tree

from potluck import launch
from potluck.client import NodeSilentError
from potluck.launch import NodeStartError, command, environment, find, find_or_start, why_ended
from potluck.settings import (
    AlreadyRunningError,
    Folders,
    NodeFile,
    exclusive,
    read_node_file,
    write_node_file,
)
from potluck.update.versions import Versions

pytestmark = pytest.mark.net

FAKE = Path(__file__).parent / "support" / "fake_node.py"


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders.of(tmp_path / "home", {})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, folders: Folders) -> Iterator[list[str]]:
    """The fake node instead of the real one; what is appended is its further words."""
    words: list[str] = []
    monkeypatch.setattr(
        launch,
        "command",
        lambda folders, *_: [sys.executable, str(FAKE), str(folders.home), *words],
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    yield words
    running = find(folders)
    if running is not None:
        running.shutdown()
    with exclusive(folders.node_lock, wait_s=10):  # it has ended
        pass


def announce(folders: Folders, **changes: object) -> None:
    values = {"pid": os.getpid(), "port": 1, "token": TOKEN, "version": "0"} | changes
    write_node_file(folders, NodeFile(**values))  # type: ignore[arg-type]


def test_without_a_file_there_is_no_node(folders: Folders) -> None:
    assert find(folders) is None


def test_a_running_node_is_found(folders: Folders, server: Server) -> None:
    announce(folders, port=server.port)

    found = find(folders)

    assert found is not None
    assert found.state().node.name == "here"


@pytest.mark.parametrize("changes", [{"pid": 999_999_999}, {"token": "of another"}])
def test_somebody_else_on_the_port_is_not_our_node(
    folders: Folders, server: Server, changes: dict[str, object]
) -> None:
    announce(folders, port=server.port, **changes)

    assert find(folders) is None
    assert read_node_file(folders) is None


def test_a_file_of_a_dead_node_is_removed(folders: Folders) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        announce(folders, port=unused.getsockname()[1])

        assert find(folders) is None
    assert not folders.node_file.exists()


def test_a_node_that_hangs_is_told_and_not_replaced(folders: Folders) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        announce(folders, port=mute.getsockname()[1])

        with pytest.raises(NodeSilentError, match=f"process {os.getpid()}"):
            find(folders, health_s=0.05)
    assert folders.node_file.exists()


@pytest.mark.slow
def test_a_node_is_started_once_for_all_who_ask(folders: Folders, fake: list[str]) -> None:
    ports: list[int] = []
    threads = [
        threading.Thread(target=lambda: ports.append(find_or_start(folders).port)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(ports) == 3
    assert len(set(ports)) == 1
    assert (folders.state / "starts").read_text() == "x"
    assert find_or_start(folders).port == ports[0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no zombies")
def test_a_node_that_was_killed_leaves_no_zombie(folders: Folders, fake: list[str]) -> None:
    find_or_start(folders)
    running = read_node_file(folders)
    assert running is not None

    os.kill(running.pid, signal.SIGKILL)

    for thread in threading.enumerate():
        if thread.name == "node ended":
            thread.join(10)
    assert not psutil.pid_exists(running.pid)


@pytest.mark.slow
def test_a_node_that_ends_at_once_tells_why(folders: Folders, fake: list[str]) -> None:
    fake.append("broken")
    folders.state.mkdir(parents=True)
    folders.log_file.write_text("an older line\n")

    with pytest.raises(NodeStartError, match="The kitchen is on fire"):
        find_or_start(folders)

    assert folders.log_file.read_text() == "an older line\n"  # the node alone writes there


@pytest.mark.skipif(sys.platform == "win32", reason="the .tar.xz is for Linux")
def test_a_new_version_is_not_left_because_the_node_before_takes_long_to_end(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = Versions(make_root(tmp_path / "potluck", "1.0.0"), "1.0.0")
    make_tree(versions.new("2.0.0"), "2.0.0")
    versions.add("2.0.0")
    versions.switch("2.0.0")
    state = (versions.folder / "state.json").read_bytes()
    monkeypatch.setattr(Versions, "of_this", lambda: versions)
    monkeypatch.setattr(launch, "END_S", 0.0)

    with (
        exclusive(folders.node_lock),
        pytest.raises(AlreadyRunningError, match="has not ended yet"),
    ):
        find_or_start(folders)

    assert versions.current == "2.0.0"
    assert (versions.folder / "state.json").read_bytes() == state  # and it is no start of it


@pytest.mark.slow
def test_a_node_that_another_one_keeps_from_starting_is_not_called_broken(
    folders: Folders, fake: list[str]
) -> None:
    with (
        exclusive(folders.node_lock),
        pytest.raises(AlreadyRunningError, match="has not ended yet"),
    ):
        find_or_start(folders)


def test_why_a_node_ended_is_told_in_its_words_but_not_in_those_of_an_exception(
    tmp_path: Path,
) -> None:
    file = tmp_path / "node.out"
    assert why_ended(file) == "It said nothing."
    file.write_text("Traceback (most recent call last):\nOSError: [Errno 28] No space left\n")
    assert why_ended(file) == "An error of its own ended it."
    file.write_text("a warning\npotluck: The disk is full. Delete something.\n")
    assert why_ended(file) == "The disk is full. Delete something."


@pytest.mark.slow
def test_a_node_that_says_nothing_is_given_up(folders: Folders, fake: list[str]) -> None:
    fake.append("silent")

    with pytest.raises(NodeStartError, match="It said nothing"):
        find_or_start(folders, wait_s=1.5)

    with exclusive(folders.node_lock, wait_s=5):  # and it is ended, not left behind
        pass


@pytest.mark.slow
def test_what_is_printed_is_of_the_last_start_alone(folders: Folders, fake: list[str]) -> None:
    fake.append("broken")
    folders.state.mkdir(parents=True)
    folders.output_file.write_text("an older line\n")

    with pytest.raises(NodeStartError):
        find_or_start(folders)

    printed = folders.output_file.read_text()
    assert "The kitchen is on fire" in printed
    assert "older" not in printed


def test_other_processes_get_the_same_folders(folders: Folders) -> None:
    assert command(folders, "node")[-4:] == ["potluck", "node", "--home", str(folders.home)]
    assert "--home" not in command(Folders.of(None, {}), "node")


def test_other_processes_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    core = str(Path(launch.__file__).resolve().parent.parent)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    both = environment()["PYTHONPATH"].split(os.pathsep)
    monkeypatch.delenv("PYTHONPATH")
    alone = environment()["PYTHONPATH"]

    assert both == [core, "elsewhere"]
    assert alone == core
