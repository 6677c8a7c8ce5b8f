"""Ranks of a group give a conversation, or take it over: each stage asks those for heads that have some for it alone."""

from typing import Any, cast

import pytest
import torch
from fake_ranks import RankedReference
from tiny_models import SESSION, Reference, make_model
from transfer_wire import UnderWay, Wire

from potluck.cluster.stage.transfers import CacheTarget, StageBefore, Transfers
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError
from potluck.wire.cache_messages import CacheGivenUp, ExpectCache, FetchCache, TakeCache

END = 40
EXPECT = ExpectCache(epoch=2, session=SESSION, step=1, transfer="t", position=0, end=END, before=1)
TAKE = TakeCache(epoch=2, session=SESSION, step=2, transfer="t", position=END)
KEY = "ab" * 32  # of the plan before
HEADS = (
    2,
    1,
    1,
)  # of two heads of keys, the first rank has one, and the others both have the second one


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return make_model("llama", tmp_path_factory.mktemp("model"))


def read(reference: Reference, parts: tuple[int, ...]) -> list[Stage]:
    """The stages of a plan that have read a prompt."""
    of = RankedReference.of(reference, parts) if len(parts) > 1 else reference
    stage: Any = of.stage(head=False)
    stage.open(SESSION, epoch=1)
    stage.forward(SESSION, reference.prompt(END), epoch=1, step=1, position=0)
    return stage.stages if len(parts) > 1 else [stage]


class Change(UnderWay):
    """A stage of the next plan, in the process of one of those before; the others give what they have."""

    def __init__(
        self, before: list[Stage], stage: Stage, *, here: int | None, gone: int | None = None
    ) -> None:
        super().__init__()
        self.stage, self.taken = stage, list[int]()
        stage.open(SESSION, epoch=2)
        self.left: LeftSessions | None = None
        sources: list[CacheTarget] = []
        for number, old in enumerate(before):
            if number == here:
                self.left = old.left(is_in_force=False)
            elif number != gone:
                sources.append(self._source(old))
        self.transfers = Transfers(
            stage,
            2,
            [],
            lambda message: self.taken.append(message.position),
            StageBefore(1, self.left, sources, KEY),
        )

    def _source(self, old: Stage) -> CacheTarget:
        here, there = Wire(self), Wire(self)
        here.other, there.other = there, here
        here.receive = lambda *message: self.transfers.receive(*message)
        there.receive = Transfers(old, 1, [], lambda _: None, key=KEY).receive
        return CacheTarget(cast("Any", here), range(len(old.weights.layers)), old.shares.share)

    def move(self) -> int:
        """How many others were asked."""
        self.transfers.expect(EXPECT)
        self.transfers.take(TAKE)
        return self.pass_on().count(FetchCache)


def cached(stage: Stage) -> list[torch.Tensor]:
    cache = stage._sessions[SESSION].cache  # pyright: ignore[reportPrivateUsage]
    return [layer.both[:, :, :END] for layer in cache.layers]


def one_rank(reference: Reference, rank: int, parts: tuple[int, ...]) -> Stage:
    group: Any = RankedReference.of(reference, parts).stage(head=False, epoch=2)
    return group.stages[rank]


@pytest.mark.parametrize(("here", "asked"), [(None, 2), (0, 1), (1, 1), (2, 1)])
def test_a_whole_stage_joins_the_heads_and_asks_nobody_for_one_that_it_has(
    llama: Reference, here: int | None, asked: int
) -> None:
    before = read(llama, HEADS)
    whole = [
        torch.cat(heads, 1) for heads in zip(cached(before[0]), cached(before[1]), strict=True)
    ]
    change = Change(before, llama.stage(head=False, epoch=2), here=here)
    assert change.move() == asked
    assert change.taken == [END]
    assert all(map(torch.equal, cached(change.stage), whole))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_gets_its_heads_of_a_whole_stage(llama: Reference, rank: int) -> None:
    (whole,) = read(llama, (1,))
    change = Change([whole], one_rank(llama, rank, HEADS), here=None)
    assert change.move() == 1
    assert change.taken == [END]
    head = min(rank, 1)
    expected = [both[:, head : head + 1] for both in cached(whole)]
    assert all(map(torch.equal, cached(change.stage), expected))


def test_heads_that_nobody_has_any_more_are_refused(llama: Reference) -> None:
    before = read(llama, (1, 1))
    change = Change(before, llama.stage(head=False, epoch=2), here=1, gone=0)
    with pytest.raises(InvalidStepError, match="cannot be had"):
        change.move()
    change.transfers.take(TAKE)
    assert change.taken == [0]


def test_a_rank_that_is_lost_meanwhile_leaves_nothing_that_counts(llama: Reference) -> None:
    change = Change(read(llama, (1, 1)), llama.stage(head=False, epoch=2), here=1)
    change.transfers.expect(EXPECT)
    change.transfers.take(TAKE)
    change.pass_on(2)  # the question, and a layer
    link = next(iter(change.transfers._incoming["t"].nbytes))  # pyright: ignore[reportPrivateUsage]
    change.transfers.lost(link)
    change.pass_on()
    assert change.taken == [0]
    assert change.stage.position(SESSION) == 0


@pytest.mark.parametrize(
    ("before", "here", "after", "is_kept"),
    [
        ((1, 1), 1, (1, 1), False),
        ((1, 1), 0, (1,), False),
        ((1,), 0, (1, 1), True),  # the other rank wants its part
        (HEADS, 1, HEADS, True),  # so does the last one, if its process was not in the group before
        (HEADS, 2, HEADS, False),
    ],
)
def test_what_no_other_stage_wants_is_given_back_at_once(
    llama: Reference,
    before: tuple[int, ...],
    here: int,
    after: tuple[int, ...],
    is_kept: bool,
) -> None:
    rank = here if len(after) > 1 else 0
    stage = one_rank(llama, rank, after) if len(after) > 1 else llama.stage(head=False, epoch=2)
    change = Change(read(llama, before), stage, here=here)
    change.move()
    assert change.taken == [END]
    assert change.left is not None
    assert (change.left.nbytes > 0) == is_kept


def test_a_rank_that_its_group_does_not_have_is_told_so(llama: Reference) -> None:
    first, _ = read(llama, (1, 1))
    change = Change([first], llama.stage(head=False, epoch=2), here=None)
    link = Wire(change)
    link.other = link
    fetch = FetchCache(
        epoch=1, session=SESSION, transfer="t", layers=(0, 4), end=END, key=KEY, had=7
    )
    Transfers(first, 1, [], lambda _: None, key=KEY).receive(
        cast("Any", link), fetch, memoryview(b"")
    )
    assert [type(message) for message in link.sent] == [CacheGivenUp]
