"""`invite`, `pair`, `unpair`, `computer`, `devices`, with a fake node."""

import json
import threading
from collections.abc import Callable

import msgspec
import pytest
from fake_backend import Server, computer

from potluck.api.values import schema
from potluck.api.values.gpus import Gpu, GpuRequest
from potluck.api.values.pairing import Pairing, PairingState
from potluck.cli.waits import Waits
from potluck.client import Client

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]


def here() -> schema.Computer:
    return computer("here", "1", is_self=True, address=None, rtt_ms=None, bytes_per_s=None)


def test_the_token_stands_alone_on_stdout(potluck: Potluck, capsys: Output) -> None:
    assert potluck("invite") == 0

    shown = capsys.readouterr()
    assert shown.out == "POT-LUCK\n"
    assert "potluck worker --join POT-LUCK" in shown.err
    assert "10 minutes" in shown.err


def test_the_token_is_printed_as_json(potluck: Potluck, capsys: Output) -> None:
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
        "medium": {"kind": "", "mbit": None},
        "spare": None,
    }
    assert mine["address"] is None
    assert mine["rtt_ms"] is None


def test_devices_are_printed_as_a_table(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.update(computers=(here(), computer("there", "2", state="version_differs")))

    potluck("devices")

    head, mine, other = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["NAME", "STATE", "ADDRESS"]
    assert "this computer" in mine
    assert "version differs" in other
    assert "110 MB/s" in other
    assert other.index("10.0.0.2") == head.index("ADDRESS")


def test_devices_say_why_a_computer_does_not_help(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(here(), computer("there", "2", state="paused", detail="It helps x.")))

    potluck("devices")

    assert capsys.readouterr().out.splitlines()[3:] == ["there: It helps x."]


def test_devices_say_what_may_be_wrong_when_nobody_else_is_found(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(here(),), hint="No other computer was found.")

    potluck("devices")

    assert capsys.readouterr().out.splitlines()[2:] == ["", "No other computer was found."]


def test_several_devices_of_a_computer_are_all_listed(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    one = schema.Device(kind="cpu", name="Some CPU", memory_total=8 * 10**9, memory_free=4 * 10**9)
    devices = (one, msgspec.structs.replace(one, index=1))
    server.update(computers=(here(), computer("there", "2", devices=devices)))

    potluck("devices")
    _, _, other = capsys.readouterr().out.splitlines()
    assert "2x Some CPU" in other
    assert "8 GB" in other
    potluck("devices", "--json")
    listed = json.loads(capsys.readouterr().out)[1]["devices"]
    assert [device.get("index", 0) for device in listed] == [0, 1]


GPUS = (
    Gpu(id="nvidia:GPU-1", name="NVIDIA GeForce RTX 4070"),
    Gpu(id="nvidia:GPU-2", name="NVIDIA GeForce RTX 4070 (2)", used=False),
    Gpu(id="nvidia:GPU-3", name="NVIDIA GeForce GTX 1660"),
)


@pytest.fixture
def gpus(server: Server) -> None:
    node = msgspec.structs.replace(server.backend.current.node, gpus=GPUS)
    server.update(computers=(here(),), node=node)


@pytest.mark.usefixtures("gpus")
def test_devices_say_which_gpus_are_off_and_turn_them_on_and_off(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("devices", "--off", "gtx", "--on", "nvidia geforce rtx 4070") == 0
    assert server.backend.gpus == [
        GpuRequest(id="nvidia:GPU-3", used=False),
        GpuRequest(id="nvidia:GPU-1", used=True),
    ]
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == (
        "Not used for models, as chosen: NVIDIA GeForce RTX 4070 (2)."
    )
    assert said.err.splitlines()[-2:] == [
        "Potluck does not use NVIDIA GeForce GTX 1660 for models.",
        "Potluck uses NVIDIA GeForce RTX 4070 for models.",
    ]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Radeon", "This computer has no GPU “Radeon”. It has: NVIDIA GeForce RTX 4070, NVIDIA"),
        (
            "4070",
            "This computer has several such GPUs. It has: NVIDIA GeForce RTX 4070, NVIDIA GeF",
        ),
    ],
)
def test_devices_turn_off_only_a_gpu_that_is_meant_for_sure(
    server: Server, potluck: Potluck, capsys: Output, name: str, said: str
) -> None:
    assert potluck("devices", "--off", name) != 0
    assert said in capsys.readouterr().err
    assert server.backend.gpus == []


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

    def decided(client: Client, pairing_id: str, *, accept: bool) -> Pairing:
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
    server: Server, potluck: Potluck, capsys: Output, state: PairingState
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))
    server.backend.pairing_answer = state

    assert potluck("pair", "there", "--yes") == 5

    error = capsys.readouterr().err
    assert state in error
    assert "123 456" in error  # shown, also where nobody is asked


def test_a_pairing_that_nobody_answers_ends(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))
    server.backend.pairing_answer = "asking"

    assert potluck("pair", "there", "--yes", waits=Waits(poll_s=0.01, pairing_s=0.1)) == 5
    assert "did not answer" in capsys.readouterr().err


def test_nobody_at_the_terminal_cannot_pair_by_sight(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(computer("there", "2", paired=False),))

    assert potluck("pair", "there") == 2
    assert "--yes" in capsys.readouterr().err
    assert server.backend.current.pairings == ()


def test_a_computer_that_appears_late_is_still_paired(server: Server, potluck: Potluck) -> None:
    timer = threading.Timer(
        0.2, lambda: server.update(computers=(computer("there", "2", paired=False),))
    )
    timer.start()

    status = potluck("pair", "there", "--yes", "--json", waits=Waits(poll_s=0.01))

    timer.join()
    assert status == 0


def test_an_unknown_computer_is_told(potluck: Potluck, capsys: Output) -> None:
    assert potluck("pair", "nobody", "--yes") == 2
    assert "nobody" in capsys.readouterr().err


def test_a_computer_is_unpaired_by_name_or_id(server: Server, potluck: Potluck) -> None:
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


@pytest.mark.parametrize("command", ["devices", "plan"])
def test_spare_copies_stand_below_the_computers_and_the_plan(
    server: Server, potluck: Potluck, capsys: Output, command: str
) -> None:
    whole = schema.SpareCopy(model="llama-1b", layers=12, nbytes=400_000_000, stored=400_000_000)
    part = msgspec.structs.replace(whole, layers=1, stored=100_000_000)
    server.update(computers=(computer("attic", "2", spare=whole), computer("mac", "3", spare=part)))

    potluck(command)

    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Spare copies: 12 layers of llama-1b on attic (400 MB).",
        "Spare copies: 1 layer of llama-1b on mac (100 MB of 400 MB).",
    ]


def test_a_computer_is_changed_and_its_link_tested(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(here(), computer("laptop", "2")))
    words = ("--rename", "attic", "--pause", "--memory", "8GB", "--test")

    assert potluck("computer", "laptop", *words) == 0

    change = schema.ComputerChange(name="attic", paused=True, memory=8 * 10**9)
    assert server.backend.changes == [("2" * 64, change)]
    assert server.backend.tested == ["2" * 64]
    assert "0.5 ms, 110 MB/s" in capsys.readouterr().out


def test_a_change_of_nothing_says_what_there_is_to_change(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(here(), computer("laptop", "2")))

    assert potluck("computer", "laptop") == 2
    assert "--rename" in capsys.readouterr().err


def test_a_computer_is_made_the_main_one(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.update(computers=(here(), computer("laptop", "2"), computer("attic", "3")))

    assert potluck("make-main", "laptop", "--yes", "--stop-answers") == 0

    assert server.backend.made_main == [("2" * 64, schema.MainRequest(stop_answers=True))]
    said = capsys.readouterr()
    assert "laptop is the main computer now, and this one helps it." in said.out
    assert "To follow as soon as they can: attic." in said.err


def test_nobody_is_made_the_main_computer_unasked(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.update(computers=(here(), computer("laptop", "2")))

    assert potluck("make-main", "laptop") == 2

    assert "must be confirmed at a terminal" in capsys.readouterr().err
    assert not server.backend.made_main
