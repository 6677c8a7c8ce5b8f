"""The master's decisions when answers under way lose their pipeline."""

from dataclasses import replace

from course import (
    ATTIC,
    AUTO,
    DESK,
    FAULT,
    LAPTOP,
    NAMES,
    NOBODY,
    SPLIT,
    Course,
    lost,
    planned,
    stages,
)

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import StageLost
from potluck.cluster.master.constraints import without_constraints
from potluck.cluster.master.losses import MOST_ATTEMPTS
from potluck.cluster.master.vocabulary import (
    Action,
    Answer,
    Break,
    Deploy,
    Failed,
    Free,
    GivenUp,
    Loaded,
    MakePlan,
    PipelineBroke,
    PlanMade,
    Present,
    RecoveryWish,
    Retire,
    Retired,
    Tell,
    UnloadWish,
)
from potluck.errors import NotEnoughMemoryError, PeerLostError, UsageError
from potluck.ids import NodeId


def recovery(request: PlanRequest, *avoid: NodeId) -> MakePlan:
    return MakePlan(request=request, settle=False, is_recovery=True, avoid=frozenset(avoid))


def stage_lost(node: NodeId) -> StageLost:
    return StageLost(node_id=node, place=NAMES[node], how="lost its part of the model")


def broken(*nodes: NodeId) -> Course:
    """A model was in force on these computers, and its pipeline broke by itself."""
    course = Course().loaded(SPLIT, *nodes)
    course.tell(PipelineBroke())
    return course


def answer_waits(course: Course) -> list[Action]:
    return course.wish(RecoveryWish)


def test_an_answer_that_waits_has_its_model_loaded_again_and_goes_on() -> None:
    course = broken(DESK, LAPTOP)

    assert answer_waits(course) == [recovery(SPLIT)]
    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [
        Retire(keep=frozenset({DESK, LAPTOP}))
    ]
    assert course.tell(Retired()) == [Deploy(epoch=12)]
    assert course.tell(Loaded()) == [Answer(ticket=2)]
    assert course.state.asked == SPLIT


def test_an_answer_that_waits_runs_on_who_is_left() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(lost(LAPTOP), Present(computers=frozenset({DESK})))

    assert answer_waits(course) == [recovery(without_constraints(SPLIT))]


def test_a_computer_whose_stage_died_is_avoided_until_a_model_is_loaded() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(stage_lost(LAPTOP))

    assert answer_waits(course) == [recovery(without_constraints(SPLIT), LAPTOP)]
    course.tell(PlanMade(stages=stages(DESK)), Retired(), Loaded())
    assert course.state.avoid == NOBODY
    course.tell(PipelineBroke())
    # The laptop is there, and not in the plan that was asked for: what was asked for cannot be had.
    assert answer_waits(course) == [recovery(without_constraints(SPLIT))]


def test_a_stage_that_dies_while_the_plan_is_made_is_not_in_it() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    told, *_ = course.tell(stage_lost(LAPTOP))

    assert isinstance(told, Break)
    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [
        recovery(without_constraints(SPLIT), LAPTOP)
    ]


def test_a_stage_that_is_known_to_have_died_only_while_the_next_plan_loads_is_not_in_that_plan() -> (
    None
):
    course = Course(DESK, LAPTOP, ATTIC).loaded(AUTO, DESK, LAPTOP)
    course.tell(PipelineBroke())
    answer_waits(course)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired())
    assert isinstance(course.state.work, Deploy)
    told, *_ = course.tell(replace(stage_lost(LAPTOP), epoch=11))  # of the plan before

    assert isinstance(told, Break)
    course.tell(Failed(error=told.error))
    assert course.tell(Retired()) == [recovery(AUTO, LAPTOP)]


def test_a_stage_that_is_known_to_have_died_before_the_next_plan_is_in_force_is_not_in_it() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    assert isinstance(course.state.work, Retire)
    course.tell(replace(stage_lost(LAPTOP), epoch=11))

    assert course.tell(Retired()) == [recovery(SPLIT, LAPTOP)]
    assert course.tell(PlanMade(stages=stages(DESK))) == [Deploy(epoch=12)]


def test_a_stage_that_died_and_is_not_in_the_next_plan_does_not_disturb_it() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    course.tell(PlanMade(stages=stages(DESK)), Retired())
    course.tell(replace(stage_lost(LAPTOP), epoch=11))

    assert course.tell(Loaded())[0] == Answer(ticket=2)


def test_there_is_a_notice_of_a_stage_whose_loss_the_pipeline_noticed_first() -> None:
    gone = StageLost(
        node_id=LAPTOP, place="Laptop", how="lost it", epoch=11, notice="Laptop lost it."
    )
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    course.tell(PlanMade(stages=stages(DESK)))

    assert course.tell(gone) == [Tell(text="Laptop lost it.")]
    assert course.tell(gone) == []
    assert course.tell(Retired()) == [Deploy(epoch=12)]


def test_a_computer_that_was_lost_before_it_was_noticed_is_missing_afterwards() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    course.tell(PlanMade(stages=stages(DESK)))

    [told] = course.tell(lost(LAPTOP))
    assert isinstance(told, Tell)
    assert LAPTOP in course.state.missing


def test_a_computer_lost_while_the_recovery_loads_is_planned_without() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired())
    told, _ = course.tell(lost(LAPTOP), Present(computers=frozenset({DESK})))

    assert isinstance(told, Break)
    assert course.tell(Failed(error=told.error)) == [Retire(keep=frozenset({DESK, LAPTOP}))]
    assert course.tell(Retired()) == [recovery(without_constraints(SPLIT))]
    course.tell(PlanMade(stages=stages(DESK)))
    assert course.tell(Loaded()) == [Answer(ticket=2)]


def test_a_computer_that_fails_in_a_recovery_is_avoided_and_then_the_answer_ends() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    for _ in range(MOST_ATTEMPTS):
        course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired())
        course.tell(Failed(error=FAULT, node_id=LAPTOP))
        assert course.tell(Retired()) == [recovery(SPLIT, LAPTOP)]
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired())
    course.tell(Failed(error=FAULT, node_id=LAPTOP))

    assert course.tell(Retired())[0] == Answer(ticket=2, error=FAULT)


def test_a_prompt_is_planned_again_when_a_computer_leaves_while_it_is_loaded() -> None:
    course = broken(DESK, LAPTOP)
    course.prompt()
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired())
    course.tell(Failed(error=PeerLostError("gone"), node_id=LAPTOP))

    [again] = course.tell(Retired())
    assert isinstance(again, MakePlan)
    assert again.avoid == frozenset({LAPTOP})


def test_what_is_missing_for_one_answer_is_missing_for_all() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    answer_waits(course)
    error = NotEnoughMemoryError(3, 2)

    assert course.tell(Failed(error=error)) == [
        Answer(ticket=2, error=error),
        Answer(ticket=3, error=error),
    ]
    assert course.state.failure is error


def test_an_answer_that_is_given_up_leaves_the_recovery_to_the_others() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)
    answer_waits(course)
    course.prompt()

    assert course.tell(GivenUp(ticket=2)) == [Answer(ticket=2)]
    course.tell(PlanMade(stages=stages(DESK)), Retired())
    assert course.tell(Loaded())[:2] == [Answer(ticket=3), Answer(ticket=4)]


def test_layers_that_the_recovery_does_not_need_are_freed_when_nobody_waits() -> None:
    course = broken(DESK, LAPTOP)
    answer_waits(course)

    assert course.tell(PlanMade(stages=stages(DESK))) == [Retire(keep=frozenset({DESK, LAPTOP}))]
    course.tell(Retired())
    assert course.tell(Loaded()) == [Answer(ticket=2), Free(node_id=LAPTOP, epoch=11)]


def test_an_answer_whose_model_is_unloaded_ends() -> None:
    course = Course().loaded(AUTO, DESK)
    course.wish(UnloadWish)
    course.tell(Retired())

    [end] = answer_waits(course)
    assert isinstance(end, Answer)
    assert isinstance(end.error, UsageError)
    assert course.prompt() == [planned(PlanRequest())]
