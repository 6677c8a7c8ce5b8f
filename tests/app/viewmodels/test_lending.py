"""What a computer says of what it does for others."""

from typing import Any

import msgspec
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
    helping = _lent(_me(state="running", layers=(10, 22)), lent_to=("Den", "Attic"))
    receiving = _lent(_me(state="receiving", progress=0.3), lent_to=("Den",))

    assert lending.lend_view(_lent(_me())).title == "Ready to join"
    assert lending.lend_view(helping)[2:4] == ("Helping Den and Attic", "12 layers")
    assert lending.lend_view(receiving).text == "Receiving layers · 30 %"
    assert lending.lend_view(_lent(_me(), paused=True)).title == "Paused"


def test_only_requests_to_this_worker_that_wait_are_shown() -> None:
    asks = pairing("confirm", role="worker")
    state = home(pairings=(pairing("confirm"), asks, pairing("refused", role="worker")))

    assert lending.worker_requests(state) == [asks]
