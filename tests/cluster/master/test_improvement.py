"""A plan in force is weighed with computers that came since."""

from asyncio import CancelledError
from dataclasses import replace

import pytest
from course import AUTO, DESK, LAPTOP, SPLIT, Course, lost, stages

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import LinkChanged
from potluck.cluster.master.improvement import can_be_improved
from potluck.cluster.master.vocabulary import (
    Answer,
    Cancel,
    Deploy,
    Failed,
    Free,
    ImproveWish,
    Loaded,
    MakePlan,
    PlanMade,
    Present,
    PromptWish,
    RecoveryWish,
    Retire,
    Retired,
    Tell,
    UnloadWish,
)
from potluck.errors import EngineError, PlanError

BOTH = Present(computers=frozenset({DESK, LAPTOP}))
ALONE = Present(computers=frozenset({DESK}))


def beside(request: PlanRequest) -> MakePlan:
    return MakePlan(request=request, settle=False, is_improvement=True)


@pytest.fixture
def came() -> Course:
    """A model runs on the desk alone, and the laptop has come."""
    course = Course(DESK).loaded(AUTO, DESK)
    course.tell(BOTH)
    return course


def test_a_better_plan_takes_the_place_of_the_one_in_force(came: Course) -> None:
    assert can_be_improved(came.state)
    assert came.wish(ImproveWish) == [beside(AUTO)]
    assert came.state.is_ready
    assert not came.state.is_preparing
    kept = frozenset({DESK, LAPTOP})
    assert came.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [Retire(keep=kept)]
    assert came.wish(RecoveryWish) == []  # of an answer that lost its pipeline by this
    assert came.tell(Retired()) == [Deploy(epoch=12)]
    assert came.tell(Loaded()) == [Answer(ticket=2), Answer(ticket=3)]
    assert not can_be_improved(came.state)


def test_layers_stay_when_a_better_plan_fails_because_answers_go_on_with_another_one(
    came: Course,
) -> None:
    came.wish(ImproveWish)
    came.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    came.wish(RecoveryWish)
    came.tell(Retired())

    assert came.tell(Failed(error=EngineError("No."), node_id=LAPTOP)) == [
        Retire(keep=frozenset({DESK, LAPTOP}))
    ]
    ended, again = came.tell(Retired())
    assert isinstance(ended, Answer)
    assert isinstance(again, MakePlan)
    assert again.is_recovery


def test_a_plan_that_is_no_better_changes_nothing_and_is_not_made_again(came: Course) -> None:
    came.wish(ImproveWish)

    assert came.tell(PlanMade(stages=None)) == [Answer(ticket=2)]
    assert came.state.is_ready
    assert not can_be_improved(came.state)
    came.tell(ALONE, BOTH)  # the laptop left and came back
    assert can_be_improved(came.state)


def test_a_link_that_changed_has_the_plan_weighed_again(came: Course) -> None:
    came.wish(ImproveWish)
    came.tell(PlanMade(stages=None))
    came.tell(LinkChanged(source=DESK, target=LAPTOP))

    assert came.wish(ImproveWish) == [beside(AUTO)]
    assert came.tell(PlanMade(stages=None)) == [Answer(ticket=3)]
    assert not can_be_improved(came.state)


def test_a_search_that_fails_is_told_and_changes_nothing(came: Course) -> None:
    came.wish(ImproveWish)
    error = EngineError("No.")

    assert came.tell(Failed(error=error)) == [Answer(ticket=2, error=error)]
    assert came.state.is_ready
    assert came.state.failure is None
    assert not can_be_improved(came.state)


def test_a_prompt_is_answered_beside_it(came: Course) -> None:
    came.wish(ImproveWish)

    assert came.prompt() == [Answer(ticket=3)]
    assert came.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [
        Retire(keep=frozenset({DESK, LAPTOP}))
    ]


@pytest.mark.parametrize("kind", ["load", "unload"])
def test_it_gives_way_to_whatever_else_is_asked_for(came: Course, kind: str) -> None:
    came.wish(ImproveWish)

    match kind:
        case "load":
            assert came.load(AUTO) == [Cancel()]
        case _:
            assert came.wish(UnloadWish) == [Cancel()]
    answered, other, *_ = came.tell(Failed(error=EngineError("cancelled")))
    assert answered == Answer(ticket=2)
    assert other in (Answer(ticket=3), Retire(keep=frozenset()))
    assert can_be_improved(came.state) == (kind != "unload")  # it is tried again later


def test_it_gives_way_to_an_answer_whose_computer_was_lost_meanwhile() -> None:
    course = Course(DESK, LAPTOP).loaded(AUTO, DESK, LAPTOP)
    course.tell(LinkChanged(source=DESK, target=LAPTOP))
    course.wish(ImproveWish)
    course.tell(lost(LAPTOP), ALONE)

    assert course.wish(RecoveryWish) == [Cancel()]
    answered, *others = course.tell(Failed(error=EngineError("cancelled")))
    assert answered == Answer(ticket=2)
    assert [type(action) for action in others] == [MakePlan]


def test_nothing_is_weighed_while_something_else_is_under_way(came: Course) -> None:
    came.tell(lost(DESK))
    assert not can_be_improved(came.state)
    came.wish(PromptWish, default=AUTO)
    assert not can_be_improved(came.state)


def test_what_was_asked_for_certain_computers_is_restored_when_they_are_back() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(lost(LAPTOP), ALONE)
    course.prompt()
    course.tell(PlanMade(stages=stages(DESK)), Retired(), Loaded())
    assert not can_be_improved(course.state)

    course.tell(BOTH)
    assert course.wish(ImproveWish) == [beside(SPLIT)]


def test_a_computer_that_was_not_asked_for_does_not_join_those_that_were() -> None:
    course = Course(DESK).loaded(PlanRequest(model="m", layers=(("Desk", 4),)), DESK)
    course.tell(BOTH)

    assert not can_be_improved(course.state)
    assert course.wish(ImproveWish) == [Answer(ticket=2)]


LEAVES = Present(computers=frozenset({DESK}), leaving=frozenset({LAPTOP}))


@pytest.fixture
def leaves() -> Course:
    """A model runs on the desk and the laptop, and the laptop says that it leaves."""
    course = Course(DESK, LAPTOP).loaded(SPLIT, DESK, LAPTOP)
    course.tell(LEAVES)
    return course


def test_a_computer_that_leaves_is_planned_without_while_it_serves(leaves: Course) -> None:
    (plan,) = leaves.wish(ImproveWish)
    assert isinstance(plan, MakePlan)
    assert plan.is_handover
    assert plan.request.layers is None
    assert leaves.state.is_ready

    notice, retire = leaves.tell(PlanMade(stages=stages(DESK)))
    assert isinstance(notice, Tell)
    assert retire == Retire(keep=frozenset({DESK, LAPTOP}))
    leaves.tell(Retired())
    *_, free = leaves.tell(Loaded())
    assert isinstance(free, Free)
    assert free.node_id == LAPTOP
    assert not [a for a in leaves.tell(lost(LAPTOP)) if isinstance(a, Tell)]
    leaves.tell(BOTH)  # it is back, and what was asked for it is restored
    assert leaves.wish(ImproveWish) == [beside(SPLIT)]


def test_a_search_for_a_faster_plan_gives_way_to_a_computer_that_leaves() -> None:
    course = Course(DESK, LAPTOP).loaded(AUTO, DESK, LAPTOP)
    course.tell(LinkChanged(source=DESK, target=LAPTOP))
    (search,) = course.wish(ImproveWish)
    assert search == beside(AUTO)

    assert course.tell(LEAVES) == [Cancel()]
    course.tell(Failed(error=CancelledError()))
    (handover,) = course.wish(ImproveWish)
    assert isinstance(handover, MakePlan)
    assert handover.is_handover
    assert course.tell(LEAVES) == []


def test_one_that_the_model_does_not_fit_without_stays_to_the_end_with_one_notice(
    leaves: Course,
) -> None:
    leaves.wish(ImproveWish)
    leaves.tell(replace(LEAVES, pauses={LAPTOP: "runs on its battery"}))
    notice, _ = leaves.tell(Failed(error=PlanError("It lacks 1 GB.")))
    assert isinstance(notice, Tell)
    assert notice.text == (
        "Laptop runs on its battery. The model does not fit without it: It lacks 1 GB."
    )
    assert leaves.state.is_ready
    assert not can_be_improved(leaves.state)
    leaves.tell(ALONE)
    assert not [a for a in leaves.tell(lost(LAPTOP)) if isinstance(a, Tell)]
