"""What becomes of a plan that is lost, or leaves, while another replica of the model answers."""

from asyncio import CancelledError

import msgspec
import pytest
from course import ATTIC, AUTO, DESK, LAPTOP, OTHER, Course, lost, stages

from potluck.cluster.master.improvement import can_be_improved
from potluck.cluster.master.vocabulary import (
    Answer,
    Break,
    Cancel,
    Failed,
    ImproveWish,
    MakePlan,
    PipelineBroke,
    PlanMade,
    Present,
    Promote,
    RecoveryWish,
    Retire,
    Tell,
)
from potluck.ids import NodeId

TWICE = msgspec.structs.replace(AUTO, replicas=2)
ALL = frozenset({DESK, LAPTOP, ATTIC})


@pytest.fixture
def course() -> Course:
    """The desk answers, and the laptop holds the model too."""
    course = Course(DESK, LAPTOP, ATTIC).loaded(TWICE, DESK)
    course.tell(Present(computers=ALL, replica=stages(LAPTOP)))
    return course


def test_another_replica_takes_the_place_of_one_that_is_lost(course: Course) -> None:
    begun = course.tell(lost(DESK))
    assert [type(action) for action in begun] == [Break, Promote, Tell]
    assert course.state.is_ready
    assert course.state.deployed is not None
    assert course.state.deployed.computers == {LAPTOP}
    assert [type(action) for action in course.prompt()] == [Answer]
    course.tell(Present(computers=ALL))  # the desk is back, and is planned for beside the laptop
    assert not course.state.missing


def test_another_replica_takes_the_place_of_one_that_leaves(course: Course) -> None:
    rest = frozenset({LAPTOP, ATTIC})
    begun = course.tell(Present(computers=rest, leaving=frozenset({DESK}), replica=stages(LAPTOP)))
    assert begun == [
        Promote(),
        Tell(text="Desk leaves. Its answers go on at another replica."),
    ]
    assert course.state.deployed is not None
    assert course.state.deployed.computers == {LAPTOP}


@pytest.mark.parametrize("kind", ["recovery", "prompt"])
def test_what_is_planned_for_a_lost_one_ends_when_another_replica_takes_its_place(
    course: Course, kind: str
) -> None:
    course.tell(Present(computers=ALL))  # the laptop still loads
    course.tell(lost(DESK))
    (plan,) = course.prompt() if kind == "prompt" else course.wish(RecoveryWish)
    assert isinstance(plan, MakePlan)
    assert course.wish(RecoveryWish) == []  # of another answer
    rest = Present(computers=ALL - {DESK}, replica=stages(LAPTOP))
    assert course.tell(rest) == [Promote(), Cancel()]
    assert course.tell(Failed(error=CancelledError())) == [Answer(ticket=2), Answer(ticket=3)]
    assert course.state.deployed is not None
    assert course.state.deployed.computers == {LAPTOP}
    assert course.state.is_ready


def test_a_plan_that_is_made_before_its_search_is_cancelled_is_dropped(course: Course) -> None:
    course.tell(Present(computers=ALL), lost(DESK))
    course.wish(RecoveryWish)
    course.tell(Present(computers=ALL - {DESK}, replica=stages(LAPTOP)))
    assert course.tell(PlanMade(stages=stages(ATTIC))) == [Answer(ticket=2)]
    assert course.state.deployed is not None
    assert course.state.deployed.computers == {LAPTOP}


def test_a_hand_over_ends_when_another_replica_takes_the_place_of_the_one_that_leaves(
    course: Course,
) -> None:
    rest = frozenset({LAPTOP, ATTIC})
    course.tell(Present(computers=rest, leaving=frozenset({DESK})))  # the laptop still loads
    (plan,) = course.wish(ImproveWish)
    assert isinstance(plan, MakePlan)
    assert plan.is_handover
    begun = course.tell(Present(computers=rest, leaving=frozenset({DESK}), replica=stages(LAPTOP)))
    assert begun[0] == Promote()
    assert begun[-1] == Cancel()
    assert course.tell(Failed(error=CancelledError())) == [Answer(ticket=2)]
    assert course.state.deployed is not None
    assert course.state.deployed.computers == {LAPTOP}


def test_a_model_that_a_person_asks_for_is_planned_on_when_another_replica_takes_a_place(
    course: Course,
) -> None:
    course.tell(Present(computers=ALL), lost(DESK))
    course.load(OTHER)
    assert course.tell(Present(computers=ALL, replica=stages(LAPTOP))) == [Promote()]
    begun = course.tell(PlanMade(stages=stages(ATTIC)))
    assert [type(action) for action in begun] == [Retire]


def test_without_another_replica_a_prompt_plans_anew(course: Course) -> None:
    course.tell(Present(computers=ALL), PipelineBroke())
    (plan,) = course.prompt()
    assert isinstance(plan, MakePlan)
    assert plan.request == TWICE


def test_a_computer_that_comes_does_not_interrupt_the_replicas(course: Course) -> None:
    fourth = ALL | {NodeId("d" * 64)}
    course.tell(Present(computers=fourth, replica=stages(LAPTOP)))
    assert not can_be_improved(course.state)
