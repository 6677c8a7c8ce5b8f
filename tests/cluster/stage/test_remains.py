"""What a stage leaves behind goes to who knows the plan, and to nobody else."""

from typing import Any, cast

import msgspec
import pytest
import torch
from chain_bench import HOME
from tiny_models import SESSION, Reference, make_model
from transfer_wire import UnderWay, Wire

from potluck.cluster.stage.giving import Giving
from potluck.cluster.stage.remains import Remains
from potluck.wire.cache_messages import CacheGivenUp, CacheRows, CacheSent, FetchCache

KEY = "ab" * 32
FETCH = FetchCache(epoch=1, session=SESSION, transfer="t", layers=(0, 2), end=9, key=KEY)


@pytest.fixture
def remains(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    llama: Reference = make_model("llama", tmp_path_factory.mktemp("model"))
    stage = llama.stage(0, 2)
    stage.open(SESSION, epoch=1)
    stage.forward(SESSION, torch.arange(9), epoch=1, step=1, position=0)
    return Remains(HOME, 1, KEY, stage.left(is_in_force=False), Giving(1))


def fetched(remains: Remains, **changes: Any) -> set[type]:
    link = Wire(UnderWay())
    link.other = link
    remains.receive(cast("Any", link), msgspec.structs.replace(FETCH, **changes))
    return {type(message) for message in link.sent}


def test_who_knows_the_plan_gets_the_rows(remains: Remains) -> None:
    assert fetched(remains) == {CacheRows, CacheSent}


@pytest.mark.parametrize(
    "changes", [{"key": None}, {"epoch": 2}, {"session": "another"}], ids=["key", "plan", "session"]
)
def test_others_are_told_that_there_is_nothing(remains: Remains, changes: dict[str, Any]) -> None:
    assert fetched(remains, **changes) == {CacheGivenUp}


def test_what_was_given_back_is_not_sent(remains: Remains) -> None:
    remains.left.clear()
    assert remains.left.nbytes == 0
    assert fetched(remains) == {CacheGivenUp}
