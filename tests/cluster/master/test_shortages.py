"""Whose memory did not suffice."""

import pytest

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import ComputerLost
from potluck.cluster.master.shortages import Shortages
from potluck.cluster.master.vocabulary import (
    Event,
    Failed,
    Loaded,
    LoadWish,
    PipelineBroke,
    UnloadWish,
    Wished,
)
from potluck.errors import EngineError, OutOfMemoryError, PotluckError, RemoteError
from potluck.ids import NodeId
from potluck.wire.messages import DeviceInfo

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
    "event",
    [
        Wished(wish=UnloadWish(ticket=1)),
        ComputerLost(node_id=LAPTOP, name="Laptop", how="stopped answering"),
    ],
)
def test_it_is_over_when_the_model_is_unloaded_and_when_the_computer_goes_and_comes_again(
    event: Event,
) -> None:
    shortages = Shortages()
    shortages.heard(Failed(error=OutOfMemoryError("It is full."), node_id=LAPTOP), ())

    shortages.heard(event, ())

    assert shortages.nodes == set()


def test_it_is_over_when_a_program_that_had_taken_the_memory_gives_it_back() -> None:
    shortages = Shortages()
    shortages.heard(Failed(error=OutOfMemoryError("It is full."), node_id=LAPTOP), ())

    for free in (80, 30, 35, 30):  # as was reported before, with the program, and as it wavers
        assert not shortages.look({LAPTOP: [lent(free)], DESK: [lent(free)]})
        assert shortages.nodes == {LAPTOP}

    assert shortages.look({LAPTOP: [lent(60)]})
    assert shortages.nodes == set()
    assert not shortages.look({LAPTOP: [lent(90)]})


def lent(free: int) -> DeviceInfo:
    return DeviceInfo(kind="cpu", memory_total=100, memory_free=free)


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
