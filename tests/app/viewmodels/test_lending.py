"""What a computer says of what it does for others."""

from typing import Any

import msgspec
import pytest
from fake_backend import computer
from scripted_window import ME, home, pairing

from potluck.api.values.schema import ClusterState, Node
from potluck_app.viewmodels import lending


def _lent(state: ClusterState, **changes: Any) -> ClusterState:
    node = msgspec.structs.replace(state.node, role="worker", **changes)
    return msgspec.structs.replace(state, node=node)


def _me(**changes: Any) -> ClusterState:
    me = computer("Desk", "1", is_self=True, paired=False, **changes)
    return ClusterState(node=Node(node_id=ME, name="Desk", version="0"), computers=(me,))


def test_the_worker_says_whom_it_helps_and_with_what() -> None:
    helping = _lent(
        _me(state="running", layers=(10, 22)),
        lent_to=("Den", "Attic"),
        lent_model="Qwen/Qwen3-8B",
        lent_of=36,
        lent_layers=12,
    )
    receiving = _lent(_me(state="receiving", progress=0.3), lent_to=("Den",))

    assert lending.lend_view(_lent(_me())).title == "Ready to join"
    assert lending.lend_view(helping)[2:4] == (
        "Helping Den and Attic",
        "For each word of an answer, it computes 12 of the 36 layers of Qwen3-8B.",
    )
    assert lending.lend_view(receiving).text == "Receiving layers · 30 %"
    tower = _lent(receiving, lent_as="tower")
    assert lending.lend_view(tower).text == "Receiving the part that reads pictures · 30 %"
    assert lending.lend_view(_lent(_me(), paused=True)).title == "Paused"


def test_only_requests_to_this_worker_that_wait_are_shown() -> None:
    asks = pairing("confirm", role="worker")
    state = home(pairings=(pairing("confirm"), asks, pairing("refused", role="worker")))

    assert lending.worker_requests(state) == [asks]


@pytest.mark.parametrize(
    ("layers", "lent", "line", "short"),
    [
        ((0, 36), ("Qwen3-8B", 36, 36, "model"), "It computes Qwen3-8B alone.", "Qwen3-8B"),
        ((0, 36), ("guide", 36, 36, "model"), "It computes Potluck guide alone.", "Potluck guide"),
        ((0, 36), ("b", 36, 36, "shares"), "For each word of an answer, it computes its part of 36 of the 36 layers of b.", "36 of 36 layers of b"),
        ((0, 36), ("b", 36, 20), "For each word of an answer, it computes 20 of the 36 layers of b.", "20 of 36 layers of b"),
        ((36, 36), ("b", 36, 0), "It holds the vocabulary of b. Other computers compute the layers.", "Vocabulary"),
        ((36, 36), ("", 36, 0), "It holds the vocabulary of the model. Other computers compute the layers.", "Vocabulary"),
        ((0, 36), ("b", 36), "For each word of an answer, it computes 36 of the 36 layers of b.", "36 of 36 layers of b"),
        ((0, 9), ("", 36), "For each word of an answer, it computes 9 of the 36 layers of the model.", "9 of 36 layers"),
        ((0, 9), ("a/b", 36), "For each word of an answer, it computes 9 of the 36 layers of b.", "9 of 36 layers of b"),
        (None, ("b", 36, 0, "tower"), "It reads pictures for b. Other computers compute the layers.", "Pictures"),
        (None, ("", 36, 0, "tower"), "It reads pictures for the model. Other computers compute the layers.", "Pictures"),
        ((0, 1), ("", 0), "1 layer", "1 layer"),  # its node is older than the window
        (None, ("", 0), "It is ready, and computes nothing just now.", "Ready"),
    ],
)  # fmt: skip
def test_a_helper_says_what_its_layers_are_of(
    layers: tuple[int, int] | None, lent: tuple[Any, ...], line: str, short: str
) -> None:
    fields = ("lent_model", "lent_of", "lent_layers", "lent_as")
    said = dict(zip(fields, lent, strict=False))
    state = _lent(_me(layers=layers), lent_to=("Den",), **said)

    view = lending.lend_view(state)
    assert (view.text, view.short) == (line, short)
