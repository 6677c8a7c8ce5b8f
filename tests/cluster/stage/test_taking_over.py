"""A stage takes a conversation over from the stages of the plan before: all of it, or nothing."""

from typing import Any, cast

import msgspec
import pytest
import torch
from tiny_models import SESSION, Reference, make_model
from transfer_wire import NOTHING, UnderWay, Wire

from potluck.cluster.stage import giving
from potluck.cluster.stage.giving import MOST_FETCHED
from potluck.cluster.stage.transfers import CacheTarget, StageBefore, Transfers
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError, OutOfMemoryError, PotluckError
from potluck.ids import SessionId
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheRows,
    ExpectCache,
    FetchCache,
    TakeCache,
)

END = 40
EXPECT = ExpectCache(epoch=2, session=SESSION, step=1, transfer="t", position=0, end=END, before=1)
TAKE = TakeCache(epoch=2, session=SESSION, step=2, transfer="t", position=END)
KEY = "ab" * 32  # of the plan before
CUT = 2  # the layers before it were in the process of the new stage


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model("llama", tmp_path_factory.mktemp("model"))


class Change(UnderWay):
    """Two stages of a plan, and the one that has all layers in the next plan, in the process of the first one."""

    def __init__(self, reference: Reference, *, computed: int = END, here: int = END) -> None:
        super().__init__()
        layers = reference.config.num_layers
        self.ids = reference.prompt(END + 1)
        self.whole = reference.stage(head=False)  # where nothing has changed
        first, self.second = (
            reference.stage(0, CUT),
            reference.stage(CUT, layers, head=False, embedding=False),
        )
        for stage in (self.whole, first, self.second):
            stage.open(SESSION, epoch=1)
        self._compute(self.whole, self.ids, END)
        hidden = self._compute(first, self.ids, max(computed, here))
        self._compute(self.second, hidden, computed)
        self.stage = reference.stage(head=False, epoch=2)
        self.stage.open(SESSION, epoch=2)
        here_link, self.there = Wire(self), Wire(self)
        here_link.other, self.there.other = self.there, here_link
        self.link = here_link
        self.left: LeftSessions = first.left(is_in_force=False)
        source = CacheTarget(cast("Any", here_link), range(CUT, layers))
        before = StageBefore(1, self.left, [source], KEY)
        self.taken: list[int] = []
        self.receiver = Transfers(
            self.stage, 2, [], lambda message: self.taken.append(message.position), before
        )
        self.sender = Transfers(self.second, 1, [], lambda _: None, key=KEY)
        here_link.receive, self.there.receive = self.receiver.receive, self.sender.receive

    @staticmethod
    def _compute(stage: Stage, inputs: torch.Tensor, end: int) -> torch.Tensor:
        output = stage.forward(SESSION, inputs[:end], epoch=1, step=1, position=0)
        assert output.hidden is not None
        return output.hidden.tensor

    def last_token(self, stage: Stage, epoch: int) -> torch.Tensor:
        output = stage.forward(SESSION, self.ids[END:], epoch=epoch, step=9, position=END)
        assert output.hidden is not None
        return output.hidden.tensor


def test_the_layers_of_this_process_and_those_of_another_one_have_the_bits_that_they_had(
    llama: Reference,
) -> None:
    change = Change(llama)
    change.receiver.expect(EXPECT)
    assert change.left.nbytes == 0  # no other stage wants any of it
    change.receiver.take(TAKE)
    assert not change.taken
    assert change.pass_on()[0] == FetchCache

    assert change.taken == [END]
    assert torch.equal(change.last_token(change.stage, 2), change.last_token(change.whole, 1))


@pytest.mark.parametrize(("key", "end"), [(KEY, END), ("ef" * 32, 0)], ids=["known", "another"])
def test_a_stage_in_force_takes_all_layers_from_a_replica_of_the_same_epoch_whose_key_it_knows(
    llama: Reference, key: str, end: int
) -> None:
    change = Change(llama)
    heir = llama.stage(head=False)
    heir.open(SESSION, epoch=1)
    taken: list[int] = []
    transfers = Transfers(
        heir, 1, [], lambda message: taken.append(message.position), key="cd" * 32
    )
    replica = Transfers(change.whole, 1, [], lambda _: None, key=KEY)
    change.link.receive, change.there.receive = transfers.receive, replica.receive
    expect = msgspec.structs.replace(EXPECT, epoch=1)
    with pytest.raises(InvalidStepError, match="cannot be had"):
        transfers.expect(expect)
    source = CacheTarget(cast("Any", change.link), range(llama.config.num_layers))
    transfers.take_over_from(StageBefore(1, None, [source], key))
    transfers.expect(expect)
    transfers.take(msgspec.structs.replace(TAKE, epoch=1))
    change.pass_on()
    assert taken == [end]
    if end:
        assert torch.equal(change.last_token(heir, 1), change.last_token(change.whole, 1))


@pytest.mark.parametrize("passed", [0, 1, 2])
def test_when_the_stage_before_is_lost_nothing_of_it_counts(llama: Reference, passed: int) -> None:
    change = Change(llama)
    change.receiver.expect(EXPECT)
    change.receiver.take(TAKE)
    assert len(change.pass_on(passed)) == passed
    change.receiver.lost(cast("Any", change.link))
    assert change.taken == [0]
    change.pass_on()  # what was under way comes all the same
    assert change.taken == [0]
    assert change.stage.position(SESSION) == 0


def test_when_the_new_stage_is_lost_the_one_before_sends_no_more(llama: Reference) -> None:
    change = Change(llama)
    change.receiver.expect(EXPECT)
    change.pass_on(1)
    assert any(isinstance(message, CacheRows) for _, message, _ in change.under_way)
    change.under_way.clear()
    change.sender.lost(cast("Any", change.there))
    change.sender.go_on(SESSION)
    assert not change.under_way


def test_a_stage_that_was_further_ahead_goes_back_if_it_is_out_of_force(llama: Reference) -> None:
    change = Change(llama, here=END + 1)
    change.receiver.expect(EXPECT)
    change.receiver.take(TAKE)
    change.pass_on()
    assert change.taken == [END]
    assert torch.equal(change.last_token(change.stage, 2), change.last_token(change.whole, 1))


@pytest.mark.parametrize("computed", [END - 1, END + 1])
def test_a_stage_with_other_tokens_gives_none(llama: Reference, computed: int) -> None:
    change = Change(llama, computed=computed)
    change.receiver.expect(EXPECT)
    change.receiver.take(TAKE)
    assert change.pass_on() == [FetchCache, CacheGivenUp]
    assert change.taken == [0]
    assert change.second.position(SESSION) == computed  # its driver may still use it


def test_what_nobody_has_is_refused_before_there_is_room_for_it(llama: Reference) -> None:
    change = Change(llama)
    unknown = ExpectCache(
        epoch=2, session=SESSION, step=1, transfer="t", position=0, end=END, before=7
    )
    with pytest.raises(InvalidStepError, match="cannot be had"):
        change.receiver.expect(unknown)
    change.receiver.forget_before()
    assert change.left.nbytes == 0
    with pytest.raises(InvalidStepError, match="cannot be had"):
        change.receiver.expect(EXPECT)
    change.receiver.take(TAKE)
    assert change.taken == [0]


@pytest.mark.parametrize(
    ("epoch", "session"), [(1, "another"), (5, SESSION)], ids=["session", "plan"]
)
def test_who_asks_for_what_is_not_there_is_told(llama: Reference, epoch: int, session: str) -> None:
    change = Change(llama)
    fetch = FetchCache(
        epoch=epoch, session=session, transfer="x", layers=(0, 1 << 40), end=END, key=KEY
    )
    change.sender.receive(cast("Any", change.there), fetch, NOTHING)
    assert [type(message) for message in change.there.sent] == [CacheGivenUp]


@pytest.mark.parametrize("key", [None, "cd" * 32], ids=["none", "of another plan"])
@pytest.mark.parametrize("epoch", [1, 2], ids=["before", "in force"])
def test_who_was_not_told_the_key_of_the_plan_gets_nothing(
    llama: Reference, key: str | None, epoch: int
) -> None:
    """Only computers of that plan, and of the next one, are told it."""
    change = Change(llama)
    asked = change.sender if epoch == 1 else change.receiver
    for known in (1, epoch):  # in force, or left by the plan before
        fetch = FetchCache(
            epoch=known, session=SESSION, transfer="x", layers=(0, 1), end=END, key=key
        )
        asked.receive(cast("Any", change.there), fetch, NOTHING)
    told = [each for each in change.there.sent if isinstance(each, CacheGivenUp)]
    assert len(told) == len(change.there.sent) == 2
    assert {each.message for each in told} == {
        "Neither that plan nor the next one names this computer."
    }


def test_one_computer_does_not_fetch_without_end(
    llama: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither more caches at a time, nor more bytes than for one and a piece of each, on however many connections."""
    whole = Change(llama)
    fetch = FetchCache(
        epoch=1, session=SESSION, transfer="x", layers=(0, 1 << 40), end=END, key=KEY
    )
    whole.sender.receive(cast("Any", whole.there), fetch, NOTHING)
    pieces = [payload.nbytes for _, message, payload in whole.under_way if payload.nbytes]
    monkeypatch.setattr(giving, "UNWRITTEN", sum(pieces) // 2)
    change = Change(llama)
    ends = [Wire(change) for _ in range(MOST_FETCHED + 3)]
    for number, end in enumerate(ends):
        end.other = change.there
        again = msgspec.structs.replace(fetch, transfer=str(number))
        change.sender.receive(cast("Any", end), again, NOTHING)

    told = [type(message) for end in ends for message in end.sent]
    assert told.count(CacheGivenUp) == 3
    on_its_way = sum(payload.nbytes for _, _, payload in change.under_way)
    assert on_its_way < 5 * giving.UNWRITTEN + MOST_FETCHED * max(pieces)


def test_nothing_is_read_of_what_was_given_back(llama: Reference) -> None:
    change = Change(llama)
    rows = change.left.rows(SESSION, range(CUT), END)
    assert rows.next() is not None
    change.left.clear()
    with pytest.raises(PotluckError):
        rows.next()
    with pytest.raises(PotluckError, match="Nothing is left"):
        change.left.rows(SESSION, range(CUT), END)


def test_a_conversation_that_has_no_room_beside_those_that_came_before_it_takes_none_of_theirs(
    llama: Reference,
) -> None:
    old, ids = llama.stage(head=False), llama.prompt(END)
    names = SessionId("used last"), SessionId("older")
    for name in names:
        old.open(name, epoch=1)
        old.forward(name, ids, epoch=1, step=1, position=0)
    left = old.left(is_in_force=False)
    new = llama.stage(head=False, epoch=2, cache_budget=left.nbytes * 3 // 4)
    transfers = Transfers(new, 2, [], lambda _: None, StageBefore(1, left))
    for name in names:
        new.open(name, epoch=2)
    transfers.expect(msgspec.structs.replace(EXPECT, session=names[0], transfer="a"))
    transfers.take(msgspec.structs.replace(TAKE, session=names[0], transfer="a"))
    with pytest.raises(OutOfMemoryError, match="beside the others"):
        transfers.expect(msgspec.structs.replace(EXPECT, session=names[1], transfer="b"))
    assert [new.position(name) for name in names] == [END, 0]
