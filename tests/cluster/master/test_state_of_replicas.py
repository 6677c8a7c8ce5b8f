"""What becomes of a plan that is lost, or leaves, while another replica of the model answers."""

import msgspec
import pytest
from course import ATTIC, AUTO, DESK, LAPTOP, Course, lost, stages

from potluck.cluster.master.improvement import can_be_improved
from potluck.cluster.master.vocabulary import (
    Answer,
    Break,
    MakePlan,
    PipelineBroke,
    Present,
    Promote,
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


def test_without_another_replica_a_prompt_plans_anew(course: Course) -> None:
    course.tell(Present(computers=ALL), PipelineBroke())
    (plan,) = course.prompt()
    assert isinstance(plan, MakePlan)
    assert plan.request == TWICE


def test_a_computer_that_comes_does_not_interrupt_the_replicas(course: Course) -> None:
    fourth = ALL | {NodeId("d" * 64)}
    course.tell(Present(computers=fourth, replica=stages(LAPTOP)))
    assert not can_be_improved(course.state)
