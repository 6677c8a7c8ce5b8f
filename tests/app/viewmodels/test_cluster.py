"""What the Cluster page and the worker window show of a state."""

from typing import Any

import msgspec
import pytest
from fake_backend import PLAN, computer
from scripted_window import ME, STUDY, home, pairing, running_model, study_pc

from potluck.api.schema import ClusterState, ComputerState, Device, Node, SpareCopy, Transfer
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
        ("ready", {}, "Ready", "ok"),
        ("receiving", {"progress": 0.624}, "Receiving layers 62 %", "accent"),
        ("loading", {}, "Loading", "accent"),
        ("paused", {}, "Paused", "warn"),
        ("lost", {"detail": "It stopped answering."}, "Lost", "err"),
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


def test_the_layer_bar_has_one_segment_per_stage_in_the_computers_colour() -> None:
    card = cluster.model_card(home(MAC, model=running_model()))

    assert card is not None
    assert [(s.name, s.text, s.color) for s in card.segments] == [
        ("here", "0\u20131", 0),
        ("there", "2\u20135", 1),
    ]
    assert card.figures == "7.9 tok/s measured · 120 tok/s predicted · 6 layers · 32 bits"
    assert card.pill == "Ready"


def test_before_the_first_answer_the_speed_is_a_prediction() -> None:
    card = cluster.model_card(home(model=running_model(tokens_per_s=None)))

    assert card is not None
    assert card.figures == "120 tok/s predicted · 6 layers · 32 bits"


def test_a_model_that_answers_is_generating() -> None:
    card = cluster.model_card(home(model=running_model(answering=1)))

    assert card is not None
    assert (card.pill, card.tone) == ("Generating", "accent")


def test_a_model_on_its_way_has_no_speed_and_says_what_the_plan_will_do() -> None:
    model = running_model(state="preparing", plan=None, tokens_per_s=None)

    card = cluster.model_card(home(model=model))

    assert card is not None
    assert card.figures == ""
    assert "measures how fast" in card.explanation


def test_a_plan_without_words_is_explained_by_its_layers() -> None:
    plan = msgspec.structs.replace(PLAN, explanation="")

    card = cluster.model_card(home(model=running_model(plan=plan)))

    assert card is not None
    assert card.explanation.startswith("here: 2 layers · 0 kB · 1.5 ms per token")


def test_a_computer_says_which_layers_and_spare_copies_it_has() -> None:
    spare = SpareCopy(model="Qwen3 8B", layers=3, nbytes=2 * 10**9, stored=10**9)

    mac = computer("Mac", "2", layers=(4, 9), spare=spare)

    assert cluster.computer_cards(home(mac))[1].holds == (
        "Layers 4\u20138 · spare copies of 3 layers on its disk, 1 GB of 2 GB"
    )


def test_prompts_that_wait_are_counted() -> None:
    card = cluster.model_card(home(model=running_model(waiting=2, wait_s=20.4)))

    assert card is not None
    assert card.figures.endswith("2 prompts wait, about 20 s")


def test_a_failed_model_says_why() -> None:
    model = running_model(state="failed", plan=None, message="4 GB are missing.")

    card = cluster.model_card(home(model=model))

    assert card is not None
    assert (card.pill, card.tone, card.line) == ("Failed", "err", "4 GB are missing.")


def test_no_model_is_no_card() -> None:
    assert cluster.model_card(home()) is None


@pytest.mark.parametrize(
    ("pairings", "step", "code"),
    [
        ((), "found", None),
        ((pairing("asking"),), "asking", None),
        ((pairing("confirm"),), "confirm", "427 918"),
        ((pairing("accepted"),), "waiting", "427 918"),
        ((pairing("refused"),), "refused", None),
        ((pairing("failed", message="Too late."),), "failed", None),
    ],
)
def test_a_joinable_computer_says_what_is_next(pairings: Any, step: str, code: str | None) -> None:
    (card,) = cluster.join_cards(home(study_pc(), pairings=pairings))

    assert (card.step, card.code) == (step, code)


def test_members_ignored_and_unwilling_computers_have_no_join_card() -> None:
    unwilling = study_pc(joinable=False)

    assert cluster.join_cards(home(MAC, unwilling)) == []
    assert cluster.join_cards(home(study_pc()), frozenset({STUDY})) == []


def _lent(state: ClusterState, **changes: Any) -> ClusterState:
    node = msgspec.structs.replace(state.node, role="worker", **changes)
    return msgspec.structs.replace(state, node=node)


def _me(**changes: Any) -> ClusterState:
    me = computer("Desk", "1", is_self=True, paired=False, **changes)
    return ClusterState(node=Node(node_id=ME, name="Desk", version="0"), computers=(me,))


def test_the_worker_says_whom_it_helps_and_with_what() -> None:
    helping = _lent(_me(state="running", layers=(10, 22)), lent_to=("Den", "Attic"))
    receiving = _lent(_me(state="receiving", progress=0.3), lent_to=("Den",))

    assert cluster.lend_view(_lent(_me())).title == "Ready to join"
    assert cluster.lend_view(helping)[2:4] == ("Helping Den and Attic", "12 layers")
    assert cluster.lend_view(receiving).text == "Receiving layers · 30 %"
    assert cluster.lend_view(_lent(_me(), paused=True)).title == "Paused"


def test_only_requests_to_this_worker_that_wait_are_shown() -> None:
    asks = pairing("confirm", role="worker")
    state = home(pairings=(pairing("confirm"), asks, pairing("refused", role="worker")))

    assert cluster.worker_requests(state) == [asks]
