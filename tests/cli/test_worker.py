"""`worker`, with a fake node: it holds, so it runs as a process."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_backend import Server, computer

from potluck.api.values import schema
from potluck.api.values.pairing import Pairing
from potluck.cli.worker import _status_line
from potluck.errors import NotHeldError
from potluck.settings import Folders, load_settings

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
Spawn = Callable[..., "subprocess.Popen[str]"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send SIGTERM")


def lines(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    return (line.strip() for line in process.stdout)


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_lends_until_it_is_ended_and_undoes_it(
    server: Server, spawn: Spawn, number: signal.Signals
) -> None:
    node = schema.Node(node_id="1" * 64, name="here", version="0", memory_limit=7)
    server.update(node=node)

    process = spawn("worker", "--memory", "4GB", "--threads", "2", "--join", "TOKEN")
    said = lines(process)
    first = [next(said), next(said), next(said)]
    process.send_signal(number)
    rest = list(said)

    assert process.wait(10) == 0
    assert first[0] == "Joined the home of main."
    assert "here lends itself" in first[1]
    assert first[2] == "Waiting for a computer to pair with."
    assert rest == ["This computer is not lent any more."]
    assert server.backend.joined == ["TOKEN"]
    assert server.backend.roles == [
        schema.RoleRequest(worker=True, memory=4 * 10**9, threads=2, while_held=True),
    ]
    assert "worker" in server.backend.held
    assert server.backend.released.wait(30)


@posix
def test_a_worker_whose_node_is_just_ending_for_a_newer_version_lends_with_the_next(
    server: Server, spawn: Spawn
) -> None:
    server.backend.role_errors.append(NotHeldError("Nobody holds this lease."))

    process = spawn("worker")
    said = lines(process)
    first = next(said)
    process.send_signal(signal.SIGINT)

    assert "here lends itself" in first
    assert list(said)[-1] == "This computer is not lent any more."
    assert process.wait(10) == 0
    assert [role.worker for role in server.backend.roles] == [True]


@posix
@pytest.mark.parametrize("is_patient", [True, False])
def test_a_worker_that_is_needed_waits_until_the_others_do_without_it_or_for_another_ctrl_c(
    server: Server, spawn: Spawn, is_patient: bool
) -> None:
    server.backend.let_go = {"role": "idle", "leaving": True, "lent_to": ("Desk", "Mac")}
    process = spawn("worker")
    said = lines(process)
    first = [next(said), next(said)]
    process.send_signal(signal.SIGINT)
    assert next(said) == (
        "Leaving: this computer still helps Desk and Mac, for at most 30 seconds. Ctrl-C leaves at once."
    )
    assert len(first) == 2
    if is_patient:
        server.update(node=schema.Node(node_id="1" * 64, name="here", version="0"))
    else:
        process.send_signal(signal.SIGINT)

    assert list(said) == ["This computer is not lent any more."]
    assert process.wait(10) == 0
    asked = server.backend.roles[1:]
    assert asked == ([] if is_patient else [schema.RoleRequest()])


@posix
@pytest.mark.slow
def test_a_worker_says_what_it_does(server: Server, spawn: Spawn) -> None:
    me = schema.Node(node_id="1" * 64, name="here", version="0", role="worker")
    lent = schema.Node(node_id="1" * 64, name="here", version="0", role="worker", lent_to=("Desk",))
    paused = schema.Node(node_id="1" * 64, name="here", version="0", role="worker", paused=True)
    played = msgspec.structs.replace(me, withheld="games")
    busy = computer("here", "1", is_self=True, layers=(4, 8), progress=0.5, state="receiving")
    loading = computer("here", "1", is_self=True, layers=(4, 8), state="loading")
    running = computer("here", "1", is_self=True, layers=(4, 8), state="running")
    idle = computer("here", "1", is_self=True)
    member = msgspec.structs.replace(me, member_of=("Desk", "Mac"))
    server.update(node=me, computers=(idle, computer("Desk", "2")))

    process = spawn("worker")
    said = lines(process)
    shown = [next(said), next(said)]
    for node, mine in (
        (member, idle),
        (lent, busy),
        (lent, loading),
        (lent, running),
        (lent, idle),
        (paused, idle),
        (played, idle),
    ):
        server.update(node=node, computers=(mine, computer("Desk", "2")))
        shown.append(next(said))
    process.terminate()

    assert process.wait(10) == 0
    assert shown[1:] == [
        "Waiting for a computer to pair with.",
        "Waiting for Desk or Mac.",
        "Receiving layers 4 to 7 from Desk, 50%.",
        "Loading layers 4 to 7 for Desk.",
        "Helping Desk: layers 4 to 7.",
        "Connected with Desk.",
        "Paused. `potluck resume` ends the pause.",
        "Paused by itself: this computer is being used for a game or a film.",
    ]
    assert list(said) == ["This computer lends itself as before."]  # it was a worker before us


@posix
def test_a_worker_without_a_person_does_not_allow_anybody(server: Server, spawn: Spawn) -> None:
    process = spawn("worker")
    said = lines(process)
    assert len([next(said), next(said)]) == 2
    pairing = Pairing(
        id="p", node_id="2" * 64, name="Desk", role="worker", state="confirm", code="123456"
    )
    server.update(pairings=(pairing,))
    shown = [next(said), next(said)]
    process.terminate()

    assert process.wait(10) == 0
    assert "123 456" in shown[0]
    assert "--join" in shown[1]
    assert server.backend.current.pairings == (pairing,)


@pytest.mark.parametrize(("answer", "state"), [("yes\n", "paired"), ("no\n", "refused")])
def test_a_person_at_the_worker_decides(
    server: Server,
    potluck: Potluck,
    capsys: Output,
    typed: Callable[[str], None],
    answer: str,
    state: str,
) -> None:
    """The command ends by Ctrl-C, which the person presses once the pairing is decided."""
    pairing = Pairing(
        id="p", node_id="2" * 64, name="Desk", role="worker", state="confirm", code="123456"
    )
    server.update(pairings=(pairing,))
    typed(answer)
    ended = threading.Event()

    def press() -> None:
        while server.backend.current.pairings[0].state == "confirm" and not ended.wait(0.01):
            pass
        signal.raise_signal(signal.SIGINT)

    # The interpreter runs the handler in the main thread, where the command is.
    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        assert potluck("worker") == 0
    finally:
        ended.set()
        pressing.join()

    assert server.backend.current.pairings[0].state == state
    assert "123 456" in capsys.readouterr().err


@posix
def test_a_new_name_is_kept_for_the_next_start(
    server: Server, folders: Folders, spawn: Spawn
) -> None:
    process = spawn("worker", "--name", "Attic")
    said = lines(process)
    first = next(said)
    process.terminate()

    assert process.wait(10) in (0, 130)
    assert "“Attic”" in first
    assert load_settings(folders.settings_file).name == "Attic"


def test_a_token_of_nobody_is_told(server: Server, potluck: Potluck, capsys: Output) -> None:
    assert potluck("worker", "--join", "x" * 5000) == 2
    assert "token" in capsys.readouterr().err
    assert server.backend.roles == []


@pytest.mark.parametrize(
    ("words", "asked", "said"),
    [
        (("pause",), schema.RoleRequest(paused=True), "Paused. `potluck resume` ends the pause."),
        (("resume",), schema.RoleRequest(paused=False), "The pause is over."),
        (("free",), schema.RoleRequest(free_now=True), "The memory is free in a moment."),
    ],
)
def test_lending_is_paused_and_resumed_by_a_command(
    server: Server,
    potluck: Potluck,
    capsys: Output,
    words: tuple[str, ...],
    asked: schema.RoleRequest,
    said: str,
) -> None:
    assert potluck(*words) == 0

    assert server.backend.roles == [asked]
    assert said in capsys.readouterr().err


def test_a_pause_for_an_hour_says_when_it_ends(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("pause", "hour") == 0

    (asked,) = server.backend.roles
    assert asked.paused_until == pytest.approx(time.time() + 3600, abs=30)
    assert "Paused until " in capsys.readouterr().err


@posix
def test_the_system_starts_it_if_its_owner_wants_so(
    tmp_path: Path, potluck: Potluck, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    assert potluck("worker", "--start-with-computer", "on") == 0
    assert "starts when you log in" in capsys.readouterr().err
    written = [path for path in tmp_path.rglob("*potluck-worker*") if not path.is_symlink()]
    assert len(written) == 1
    assert potluck("worker", "--start-with-computer", "off") == 0

    assert not written[0].exists()


@pytest.mark.parametrize(
    ("held", "says"),
    [
        ({"layers": (4, 8)}, "layers 4 to 7"),
        ({"layers": (0, 8), "ranges": ((0, 1), (4, 8))}, "layer 0 and layers 4 to 7"),
        ({"layers": (36, 36)}, "the vocabulary"),
        ({"lent_as": "tower"}, "the part that reads pictures"),
    ],
)
def test_a_worker_names_what_it_computes(held: dict[str, Any], says: str) -> None:
    node = schema.Node(node_id="1" * 64, name="here", version="0", lent_to=("Desk",))
    node = msgspec.structs.replace(node, lent_as=held.pop("lent_as", "layers"))
    me = computer("here", "1", is_self=True, state="running", **held)
    state = schema.ClusterState(node=node, computers=(me,))
    assert _status_line(state) == f"Helping Desk: {says}."
