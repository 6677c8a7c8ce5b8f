"""Rank 0 answers with what all ranks of its group have: with the least, and not before it is known."""

from typing import Any, cast

import pytest
from chain_bench import FakeLink

from potluck.cluster.stage.agreement import Agreement, Asked
from potluck.wire.activation_messages import RestoreSession
from potluck.wire.cache_messages import RankHas, TakeCache

RESTORE = RestoreSession(epoch=1, session="a", step=3, position=640, prefix=b"")
TAKE = TakeCache(epoch=1, session="a", step=3, transfer="t", position=640)


class Group:
    """Rank 0 of three, and what it has answered."""

    def __init__(self, others: int = 2) -> None:
        self.links = [FakeLink() for _ in range(others)]
        self.answers: list[tuple[Asked, int]] = []
        self.agreement = Agreement(
            tuple(cast("Any", self.links)),
            lambda asked, position: self.answers.append((asked, position)),
        )

    def hear(self, other: int, position: int, *, step: int = 3, session: str = "a") -> None:
        has = RankHas(epoch=1, session=session, step=step, position=position)
        self.agreement.heard(cast("Any", self.links[other]), has)


def test_a_stage_without_others_answers_at_once() -> None:
    alone = Group(0)
    alone.agreement.ask(RESTORE)
    alone.agreement.own(RESTORE, 512)
    assert alone.answers == [(RESTORE, 512)]


@pytest.mark.parametrize("asked", [RESTORE, TAKE], ids=["disk", "transfer"])
def test_what_all_have_is_answered_when_all_have_said_it(asked: Asked) -> None:
    group = Group()
    group.agreement.ask(asked)
    group.hear(1, 640)
    group.hear(1, 640)  # again
    group.agreement.own(asked, 640)
    assert not group.answers
    group.hear(0, 640)
    assert group.answers == [(asked, 640)]
    group.hear(0, 1)
    assert len(group.answers) == 1


def test_of_what_is_on_the_disk_the_least_counts_and_all_are_waited_for() -> None:
    group = Group()
    group.agreement.ask(RESTORE)
    group.agreement.own(RESTORE, 576)
    group.hear(0, 0)
    assert not group.answers  # the other one may still read into its cache
    group.hear(1, 640)
    assert group.answers == [(RESTORE, 0)]


def test_a_transfer_that_one_does_not_have_is_of_no_use_to_the_others() -> None:
    group = Group()
    group.agreement.ask(TAKE)
    group.hear(1, 0)
    assert group.answers == [(TAKE, 0)]
    group.agreement.own(TAKE, 640)
    assert len(group.answers) == 1


def test_nothing_is_answered_of_what_nobody_has_asked_or_asks_any_more() -> None:
    group = Group(1)
    group.hear(0, 640)
    group.agreement.ask(TAKE)
    group.hear(0, 640, step=2)
    group.hear(0, 640, session="b")
    group.agreement.drop("a")
    group.hear(0, 640)
    group.agreement.own(TAKE, 640)
    assert not group.answers
