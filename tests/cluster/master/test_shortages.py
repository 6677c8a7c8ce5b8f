"""Whose memory did not suffice."""

import pytest

from potluck.api.values.schema import PlanRequest
from potluck.cluster.master.shortages import Shortages
from potluck.cluster.master.vocabulary import Failed, Loaded, LoadWish, PipelineBroke, Wished
from potluck.errors import EngineError, OutOfMemoryError, PotluckError, RemoteError
from potluck.ids import NodeId

DESK, LAPTOP = NodeId("1" * 64), NodeId("2" * 64)
ASKED = Wished(wish=LoadWish(ticket=1, request=PlanRequest()))


@pytest.mark.parametrize(
    "error",
    [OutOfMemoryError("It is full."), RemoteError("It is full.", kind=OutOfMemoryError.code)],
)
def test_it_is_the_computer_that_failed_until_it_has_loaded_something(error: PotluckError) -> None:
    shortages = Shortages()
    shortages.heard(Failed(error=error, node_id=LAPTOP), ())
    assert shortages.nodes == {LAPTOP}

    shortages.heard(Loaded(), (DESK,))  # it was loaded without it
    shortages.heard(PipelineBroke(), ())
    assert shortages.nodes == {LAPTOP}

    shortages.heard(Loaded(), (DESK, LAPTOP))
    assert shortages.nodes == set()


def test_another_load_that_is_asked_for_tries_anew() -> None:
    shortages = Shortages()
    shortages.heard(Failed(error=OutOfMemoryError("It is full."), node_id=LAPTOP), ())

    shortages.heard(ASKED, ())

    assert shortages.nodes == set()


@pytest.mark.parametrize(
    "failed",
    [
        Failed(error=EngineError("It is broken."), node_id=LAPTOP),
        Failed(error=OutOfMemoryError("No plan fits.")),
        Failed(error=KeyError("x"), node_id=LAPTOP),
    ],
)
def test_other_failures_are_no_shortage(failed: Failed) -> None:
    shortages = Shortages()
    shortages.heard(failed, ())
    assert shortages.nodes == set()
