"""What the Cluster page and the worker window show of a state."""

from typing import Any

import pytest
from fake_backend import computer
from msgspec.structs import replace
from scripted_window import home, study_pc

from potluck.api.values.network import Medium
from potluck.api.values.schema import ComputerState, Device, SpareCopy, Transfer
from potluck.api.values.vitals import Vitals
from potluck_app.viewmodels import cluster

MAC = computer("MacBook Air", "2", color=1)


def test_the_header_counts_members_memory_and_those_who_wait() -> None:
    paused = computer("Gaming PC", "4", state="paused")
    lost = computer("Old laptop", "5", state="lost", online=False)

    line = cluster.header(home(MAC, paused, lost, study_pc()))

    assert line == "Desk, MacBook Air and Gaming PC connected · 16 GB usable for models · 1 waiting"


def test_this_computer_is_the_first_card_and_strangers_have_none() -> None:
    cards = cluster.computer_cards(home(study_pc(), MAC, computer("Attic", "4")))

    assert [card.name for card in cards] == ["Desk", "Attic", "MacBook Air"]
    assert [card.removable for card in cards] == [False, True, True]
    assert [card.icon for card in cards] == ["desktop", "desktop", "laptop"]


@pytest.mark.parametrize(
    ("state", "more", "text", "tone"),
    [
        ("found", {}, "Found", "neutral"),
        ("asking", {}, "Asking", "accent"),
        ("pairing", {}, "Pairing", "accent"),
        ("ready", {}, "Ready", "ok"),
        ("ready", {"slower": 2.5}, "Slow", "warn"),
        ("ready", {"lacked_memory": True, "slower": 2.5}, "Out of memory", "err"),
        ("running", {}, "Running", "ok"),
        ("running", {"slower": 2.5}, "Slow", "warn"),
        ("loading", {"lacked_memory": True, "slower": 2.5}, "Loading", "accent"),
        ("receiving", {"progress": 0.624}, "Receiving layers 62 %", "accent"),
        ("receiving", {"progress": 0.4, "reads_pictures": "soon"}, "Receiving 40 %", "accent"),
        ("loading", {}, "Loading", "accent"),
        ("paused", {}, "Paused", "warn"),
        ("lost", {"detail": "It stopped answering."}, "Lost", "err"),
        ("lost", {"reconnecting": True}, "Reconnecting", "warn"),
        ("version_differs", {}, "Version differs", "warn"),
        ("blocked", {}, "Blocked", "err"),
    ],
)
def test_pills_say_the_state(
    state: ComputerState, more: dict[str, Any], text: str, tone: str
) -> None:
    assert cluster.pill(computer("x", "2", state=state, **more)) == (text, tone)


def test_the_memory_line_and_its_bar_say_the_same() -> None:
    device = Device(kind="cuda", name="RTX", memory_total=12 * 10**9, memory_free=3 * 10**9)

    card = cluster.computer_cards(home(computer("Mac", "2", devices=(device,))))[1]

    assert (card.memory, card.used, card.limit) == ("0 of 3 GB GPU memory lent", 0.0, 0.25)

    cpu = Device(kind="cpu", name="Ryzen", memory_total=36 * 10**9, memory_free=9 * 10**9)
    mac = computer("Mac", "2", devices=(device, cpu), memory_lent=6 * 10**9)
    card = cluster.computer_cards(home(mac))[1]

    assert (card.memory, card.used, card.limit) == ("6 of 12 GB lent", 0.125, 0.25)


def test_a_computer_in_trouble_explains_itself_in_the_place_of_figures() -> None:
    lost = computer("Mac", "2", state="lost", detail="It stopped answering. It may be asleep.")

    card = cluster.computer_cards(home(lost))[1]

    assert card.detail == "It stopped answering. It may be asleep."


def test_a_receiving_computer_says_how_far_how_fast_and_how_long() -> None:
    receiving = computer("Mac", "2", state="receiving", progress=0.5)
    transfer = Transfer(
        node_id=receiving.node_id,
        name="Mac",
        sent=10**9,
        total=2 * 10**9,
        bytes_per_s=5e7,
        eta_s=20,
    )

    card = cluster.computer_cards(home(receiving, transfers=(transfer,)))[1]

    assert card.receiving == "1 GB of 2 GB · 400 Mbit/s · 20 s left"
    assert card.progress == 0.5


def test_a_computer_with_layers_in_several_places_says_all_of_them() -> None:
    mac = computer("Mac", "2", layers=(0, 9), ranges=((0, 3), (8, 9)))

    assert cluster.computer_cards(home(mac))[1].holds == "Layers 0\u20132, 8"


def test_a_computer_without_layers_says_that_it_reads_pictures_or_will() -> None:
    for is_it, line in (
        ("soon", "Will read pictures for the others"),
        ("yes", "Reads pictures for the others"),
    ):
        mac = computer("Mac", "2", reads_pictures=is_it, layers=None)

        assert cluster.computer_cards(home(mac))[1].holds == line


def test_a_computer_says_which_layers_and_spare_copies_it_has() -> None:
    spare = SpareCopy(model="Qwen3 8B", layers=3, nbytes=2 * 10**9, stored=10**9)

    mac = computer("Mac", "2", layers=(4, 9), spare=spare)

    assert cluster.computer_cards(home(mac))[1].holds == (
        "Layers 4\u20138 · spare copies of 3 layers on its disk, 1 GB of 2 GB"
    )


@pytest.mark.parametrize(
    ("vitals", "line"),
    [
        (None, "400 Mbit/s · 12 ms"),
        (Vitals(), "400 Mbit/s · 12 ms"),
        (Vitals(heat_c=70.0), "70 °C · 400 Mbit/s · 12 ms"),
        (Vitals(battery=0.64), "Battery 64 % · 400 Mbit/s · 12 ms"),
        (Vitals(battery=0.64, plugged=True), "Battery 64 %, plugged in · 400 Mbit/s · 12 ms"),
        (Vitals(battery=1.0, plugged=True, heat_c=45.0), "45 °C · 400 Mbit/s · 12 ms"),
    ],
)
def test_a_computer_says_how_hot_it_is_and_what_is_left_in_its_battery(
    vitals: Vitals | None, line: str
) -> None:
    mac = computer("Mac", "2", bytes_per_s=5e7, rtt_ms=12.0, vitals=vitals)

    assert cluster.computer_cards(home(mac))[1].link == line


@pytest.mark.parametrize(
    ("medium", "line"),
    [
        (Medium(kind="wifi"), "Wi-Fi · 400 Mbit/s · 12 ms"),
        (Medium(kind="cable"), "Cable · 400 Mbit/s · 12 ms"),
        (Medium(kind="cable", mbit=1000), "Cable (1 Gbit/s) · 400 Mbit/s · 12 ms"),
        (Medium(kind="vpn"), "VPN · 400 Mbit/s · 12 ms"),
        (Medium(kind="virtual"), "400 Mbit/s · 12 ms"),
        (Medium(), "400 Mbit/s · 12 ms"),
    ],
)
def test_a_computer_says_what_its_link_goes_over_if_it_knows(medium: Medium, line: str) -> None:
    mac = computer("Mac", "2", bytes_per_s=5e7, rtt_ms=12.0, medium=medium)

    assert cluster.computer_cards(home(mac))[1].link == line


def test_this_computer_has_no_link_and_says_how_hot_it_is_all_the_same() -> None:
    me = computer("Desk", "1", is_self=True, rtt_ms=0.0, vitals=Vitals(heat_c=70.0))
    state = home()

    assert cluster.computer_cards(replace(state, computers=(me,)))[0].link == "70 °C"


def test_a_slow_computer_and_one_that_lacked_memory_say_what_that_means() -> None:
    slow = computer("Attic", "4", state="running", layers=(0, 2), slower=2.0)
    full = computer("Mac", "2", lacked_memory=True)

    _, attic, mac = cluster.computer_cards(home(slow, full))

    assert attic.holds == "Layers 0\u20131 · takes 2 times as long as measured"
    assert mac.holds.startswith("Its memory did not suffice")
