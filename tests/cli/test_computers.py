"""`worker`, `invite`, `pair`, `unpair`, `devices`, with a fake node."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from fake_backend import Server, computer

from potluck.api import schema
from potluck.cli import computers
from potluck.client import Client
from potluck.settings import Folders, load_settings

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
Spawn = Callable[..., "subprocess.Popen[str]"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send SIGTERM")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computers, "DISCOVERY_S", 0.3)
    monkeypatch.setattr(computers, "PAIRING_S", 5.0)
    monkeypatch.setattr(computers, "POLL_S", 0.01)


def here() -> schema.Computer:
    return computer("here", "1", is_self=True, address=None, rtt_ms=None, bytes_per_s=None)


def test_the_token_stands_alone_on_stdout(potluck: Potluck, capsys: Output) -> None:
    assert potluck("invite") == 0

    shown = capsys.readouterr()
    assert shown.out == "POT-LUCK\n"
    assert "potluck worker --join POT-LUCK" in shown.err
    assert "10 minutes" in shown.err


def test_the_token_as_json(potluck: Potluck, capsys: Output) -> None:
    potluck("invite", "--json")

    assert json.loads(capsys.readouterr().out) == {"token": "POT-LUCK", "expires_s": 600.0}


def test_devices_as_json_have_exactly_these_fields(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(here(), computer("there", "2", rtt_ms=0.5)))

    assert potluck("devices", "--json") == 0

    mine, other = json.loads(capsys.readouterr().out)
    assert other == {
        "id": "2" * 64,
        "name": "there",
        "address": "10.0.0.2:4711",
        "paired": True,
        "online": True,
        "devices": [
            {
                "kind": "cpu",
                "name": "Some CPU",
                "memory_total": 16 * 10**9,
                "memory_free": 8 * 10**9,
            }
        ],
        "rtt_ms": 0.5,
        "bytes_per_s": 1.1e8,
    }
    assert mine["address"] is None
    assert mine["rtt_ms"] is None


def test_devices_as_a_table(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.update(computers=(here(), computer("there", "2", state="version_differs")))

    potluck("devices")

    head, mine, other = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["NAME", "STATE", "ADDRESS"]
    assert "this computer" in mine
    assert "version differs" in other
    assert "110.0 MB/s" in other
    assert other.index("10.0.0.2") == head.index("ADDRESS")


def test_several_devices_of_a_computer_are_all_listed(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    one = schema.Device(kind="cpu", name="Some CPU", memory_total=8 * 10**9, memory_free=4 * 10**9)
    devices = (one, msgspec.structs.replace(one, index=1))
    server.update(computers=(here(), computer("there", "2", devices=devices)))

    potluck("devices")
    _, _, other = capsys.readouterr().out.splitlines()
    assert "2x Some CPU" in other
    assert "8.0 GB" in other
    potluck("devices", "--json")
    listed = json.loads(capsys.readouterr().out)[1]["devices"]
    assert [device.get("index", 0) for device in listed] == [0, 1]


def test_pair_without_a_name_lists_what_can_be_paired(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(
        computers=(
            here(),
            computer("old", "2"),
            computer("new", "3", paired=False, joinable=True),
            computer("closed", "4", paired=False),
        )
    )

    assert potluck("pair", "--json") == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["new"]
    assert potluck("pair") == 0
    shown = capsys.readouterr()
    assert "new" in shown.out
    assert "old" not in shown.out
    assert "closed" not in shown.out


def test_nothing_to_pair_says_what_to_do(potluck: Potluck, capsys: Output) -> None:
    assert potluck("pair") == 0

    shown = capsys.readouterr()
    assert shown.out == ""
    assert "potluck worker" in shown.err


def test_pairing_shows_the_digits_and_asks(
    server: Server, potluck: Potluck, capsys: Output, typed: Callable[[str], None]
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))
    typed("what?\ny\n")

    assert potluck("pair", "there") == 0

    shown = capsys.readouterr()
    assert "123 456" in shown.err
    assert shown.err.count("[y/n]") == 2  # what is neither yes nor no is asked again
    assert "there" in shown.out


def test_pairing_without_a_question_shows_the_digits_before_it_accepts(
    server: Server, potluck: Potluck, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))
    decide, shown_before = Client.decide_pairing, []

    def decided(client: Client, pairing_id: str, *, accept: bool) -> schema.Pairing:
        shown_before.append(capsys.readouterr().err)
        return decide(client, pairing_id, accept=accept)

    monkeypatch.setattr(Client, "decide_pairing", decided)

    assert potluck("pair", "there", "--yes") == 0

    assert len(shown_before) == 1
    assert "digits: 123 456\n" in shown_before[0]


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_different_digits_refuse_the_pairing(
    server: Server, potluck: Potluck, capsys: Output, typed: Callable[[str], None], answer: str
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))
    typed(answer)

    assert potluck("pair", "there") == 5

    assert server.backend.current.pairings[0].state == "refused"
    assert "refused" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["failed", "refused"])
def test_a_pairing_that_does_not_come_about_has_a_status(
    server: Server, potluck: Potluck, capsys: Output, state: schema.PairingState
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))
    server.backend.pairing_answer = state

    assert potluck("pair", "there", "--yes") == 5

    error = capsys.readouterr().err
    assert state in error
    assert "123 456" in error  # shown, also where nobody is asked


def test_a_pairing_that_nobody_answers_ends(
    server: Server, potluck: Potluck, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computers, "PAIRING_S", 0.1)
    server.update(computers=(computer("there", "2", paired=False),))
    server.backend.pairing_answer = "asking"

    assert potluck("pair", "there", "--yes") == 5
    assert "did not answer" in capsys.readouterr().err


def test_nobody_at_the_terminal_cannot_pair_by_sight(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))

    assert potluck("pair", "there") == 2
    assert "--yes" in capsys.readouterr().err
    assert server.backend.current.pairings == ()


def test_a_computer_that_appears_late_is_still_paired(
    server: Server, potluck: Potluck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computers, "DISCOVERY_S", 10.0)
    timer = threading.Timer(
        0.2, lambda: server.update(computers=(computer("there", "2", paired=False),))
    )
    timer.start()

    status = potluck("pair", "there", "--yes", "--json")

    timer.join()
    assert status == 0


def test_an_unknown_computer_is_told(potluck: Potluck, capsys: Output) -> None:
    assert potluck("pair", "nobody", "--yes") == 2
    assert "nobody" in capsys.readouterr().err


def test_unpair_by_name_or_id(server: Server, potluck: Potluck) -> None:
    server.update(computers=(here(), computer("a", "2"), computer("b", "3"), computer("b", "4")))

    assert potluck("unpair", "a") == 0
    assert potluck("unpair", "33333333") == 0

    assert server.backend.forgotten == ["2" * 64, "3" * 64]


@pytest.mark.parametrize(
    ("wanted", "said"), [("b", "33333333, 44444444"), ("x", "a, b, b"), ("here", "a, b, b")]
)
def test_unpair_never_guesses(
    server: Server, potluck: Potluck, capsys: Output, wanted: str, said: str
) -> None:
    server.update(computers=(here(), computer("a", "2"), computer("b", "3"), computer("b", "4")))

    assert potluck("unpair", wanted) == 2

    assert said in capsys.readouterr().err
    assert server.backend.forgotten == []


# --- worker: it holds, so it runs as a process


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
        schema.RoleRequest(worker=True, memory=4 * 10**9, threads=2, paused=False, while_held=True),
    ]
    assert "worker" in server.backend.held
    assert server.backend.released.wait(5)


@posix
@pytest.mark.slow
def test_a_worker_says_what_it_does(server: Server, spawn: Spawn) -> None:
    me = schema.Node(node_id="1" * 64, name="here", version="0", role="worker")
    lent = schema.Node(node_id="1" * 64, name="here", version="0", role="worker", lent_to=("Desk",))
    paused = schema.Node(node_id="1" * 64, name="here", version="0", role="worker", paused=True)
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
        "Paused.",
    ]
    assert list(said) == ["This computer lends itself as before."]  # it was a worker before us


@posix
def test_a_worker_without_a_person_does_not_allow_anybody(server: Server, spawn: Spawn) -> None:
    process = spawn("worker")
    said = lines(process)
    assert len([next(said), next(said)]) == 2
    pairing = schema.Pairing(
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
    pairing = schema.Pairing(
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
