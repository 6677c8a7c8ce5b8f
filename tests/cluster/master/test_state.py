"""The master's decisions: sequences of events, and the actions that come of them."""

import pytest
from course import (
    AUTO,
    DEFAULT,
    DESK,
    FAULT,
    LAPTOP,
    NOBODY,
    OTHER,
    SPLIT,
    Course,
    lost,
    planned,
    stages,
)

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import Holds
from potluck.cluster.master.constraints import without_constraints
from potluck.cluster.master.vocabulary import (
    Action,
    Answer,
    Break,
    Cancel,
    Deploy,
    Failed,
    Free,
    GivenUp,
    Loaded,
    PipelineBroke,
    PlanMade,
    Present,
    Retire,
    Retired,
    ReturnWish,
    Tell,
    UnloadWish,
)
from potluck.errors import UsageError

# --- a load


def test_a_load_is_planned_deployed_and_answered() -> None:
    course = Course()

    assert course.load(AUTO) == [planned(AUTO)]
    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [Deploy(epoch=11)]
    assert not course.state.is_ready
    assert course.tell(Loaded()) == [Answer(ticket=1)]
    assert course.state.is_ready
    assert course.state.asked == AUTO


def test_what_is_loaded_as_asked_is_not_loaded_again() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.load(AUTO) == [Answer(ticket=2)]
    assert course.load(AUTO, anew=True) == [planned(AUTO)]


def test_another_model_is_planned_before_the_one_before_makes_room() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.load(OTHER) == [planned(OTHER)]
    assert course.state.is_ready  # prompts that are under way go on
    assert course.tell(PlanMade(stages=stages(LAPTOP))) == [Retire(keep=frozenset({LAPTOP}))]
    assert course.tell(Retired()) == [Deploy(epoch=12)]
    assert course.state.asked == OTHER


def test_loads_come_one_after_the_other() -> None:
    course = Course()
    course.load(AUTO)

    assert course.load(OTHER) == []
    course.tell(PlanMade(stages=stages(DESK)))
    assert course.tell(Loaded()) == [Answer(ticket=1), planned(OTHER)]


def test_a_load_without_a_plan_leaves_what_was_loaded() -> None:
    course = Course().loaded(AUTO, DESK)
    course.load(OTHER)

    assert course.tell(Failed(error=FAULT)) == [Answer(ticket=2, error=FAULT)]
    assert course.state.is_ready
    assert course.state.asked == AUTO
    assert course.state.failure is None


def test_after_a_failed_load_no_other_model_answers_in_its_place() -> None:
    course = Course()
    course.load(SPLIT)

    assert course.tell(Failed(error=FAULT)) == [Answer(ticket=1, error=FAULT)]
    assert course.state.failure is FAULT
    assert course.prompt() == [planned(SPLIT)]
    assert course.state.failure is None
    course.tell(Failed(error=FAULT))
    assert course.state.asked == SPLIT


def test_what_a_failed_load_has_loaded_goes_before_anybody_hears_of_it() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))

    assert course.tell(Failed(error=FAULT)) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=1, error=FAULT)]
    assert course.state.failure is FAULT
    assert course.state.deployed is None


def test_of_a_fault_of_our_own_nothing_is_shown_or_asked_for() -> None:
    course, fault = Course(), ZeroDivisionError()
    course.load(AUTO)

    assert course.tell(Failed(error=fault)) == [Answer(ticket=1, error=fault)]
    assert course.state.failure is None
    assert course.state.asked is None


# --- a load that nobody wants any more


def test_a_load_that_is_given_up_ends_and_is_undone() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK)))

    assert course.tell(GivenUp(ticket=1)) == [Cancel()]
    assert course.tell(Failed(error=FAULT)) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=1)]
    assert (course.state.asked, course.state.failure) == (None, None)


def test_one_that_ended_before_it_was_told_is_undone_all_the_same() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK)))
    course.tell(GivenUp(ticket=1))

    assert course.tell(Loaded()) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=1)]


def test_a_plan_for_one_that_is_given_up_is_not_deployed() -> None:
    course = Course().loaded(AUTO, DESK)
    course.load(OTHER)
    course.tell(GivenUp(ticket=2))

    assert course.tell(PlanMade(stages=stages(DESK))) == [Answer(ticket=2)]
    assert course.state.is_ready
    assert course.state.asked == AUTO


def test_a_load_that_is_given_up_while_the_one_before_goes_leaves_nothing() -> None:
    course = Course().loaded(AUTO, DESK)
    course.load(OTHER)
    course.tell(PlanMade(stages=stages(DESK)))

    assert course.tell(GivenUp(ticket=2)) == []  # what is being unloaded is unloaded to its end
    assert course.tell(Retired()) == [Answer(ticket=2), Free(node_id=DESK, epoch=11)]
    assert (course.state.asked, course.state.deployed) == (None, None)


def test_one_that_waits_for_its_turn_is_given_up_at_once() -> None:
    course = Course()
    course.load(AUTO)
    course.load(OTHER)

    assert course.tell(GivenUp(ticket=2)) == [Answer(ticket=2)]
    assert course.tell(GivenUp(ticket=2)) == []  # it is gone
    course.tell(PlanMade(stages=stages(DESK)))
    assert course.tell(Loaded()) == [Answer(ticket=1)]


# --- prompts


def test_a_prompt_loads_what_was_asked_for_or_the_default() -> None:
    course = Course()
    assert course.prompt() == [planned(DEFAULT)]
    course.tell(PlanMade(stages=stages(DESK)), Loaded())
    assert course.prompt() == [Answer(ticket=2)]
    assert course.state.asked == DEFAULT


def test_a_prompt_loads_again_what_broke_by_itself() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)

    assert course.tell(PipelineBroke()) == []
    assert course.prompt() == [planned(SPLIT)]


def test_a_lost_computer_breaks_what_runs_and_is_named() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    told, notice = course.tell(lost(LAPTOP))

    assert isinstance(told, Break)
    assert "Laptop stopped answering" in told.error.message
    assert notice == Tell(text="Laptop stopped answering. Potluck goes on without it.")
    assert not course.state.is_ready


def test_the_next_prompt_runs_on_who_is_left_and_waits_for_nobody() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(lost(LAPTOP))

    assert course.prompt() == [planned(without_constraints(SPLIT), settle=False)]
    course.tell(PlanMade(stages=stages(DESK)), Retired(), Loaded())
    assert course.state.asked == SPLIT  # once everyone is back


def test_a_computer_that_is_back_before_the_next_prompt_gets_its_layers_again() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(lost(LAPTOP), Present(computers=frozenset({DESK, LAPTOP})))

    assert course.prompt() == [planned(SPLIT, settle=False)]


@pytest.mark.parametrize("request_", [SPLIT, AUTO])
def test_a_computer_that_is_back_is_used_by_the_next_load(request_: PlanRequest) -> None:
    course = Course().loaded(request_, DESK, LAPTOP)
    course.tell(lost(LAPTOP))
    course.prompt()
    course.tell(PlanMade(stages=stages(DESK)), Retired(), Loaded())

    assert course.load(request_) == [Answer(ticket=3)]  # it is not back yet
    course.tell(Present(computers=frozenset({DESK, LAPTOP})))
    assert course.load(request_) == [planned(request_)]
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired(), Loaded())
    assert course.load(request_) == [Answer(ticket=5)]


def test_without_constraints_the_model_stays_the_same() -> None:
    request = PlanRequest(model="m", scheme="bf16", layers=(("a", 1),), workers=2, context=9)
    assert without_constraints(request) == PlanRequest(model="m", scheme="bf16", context=9)


# --- unloading


def test_unloading_frees_everyone_and_forgets_what_was_asked() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.wish(UnloadWish) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=2)]
    assert course.prompt() == [planned(DEFAULT)]


def test_a_master_that_leaves_lets_everyone_keep_their_layers() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(Holds(node_id=LAPTOP, epoch=11))
    assert course.wish(UnloadWish, keeps_layers=True) == [Retire(keep=frozenset({DESK, LAPTOP}))]
    assert course.tell(Retired()) == [Answer(ticket=2)]


def test_a_master_that_leaves_undoes_the_load_under_way() -> None:
    course = Course()
    course.load(SPLIT)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    assert course.wish(UnloadWish, keeps_layers=True) == [Cancel()]
    fault = Failed(error=FAULT)
    assert course.tell(fault) == [Retire(keep=NOBODY)]
    first, second = course.tell(Retired())
    assert isinstance(first, Answer)
    assert isinstance(first.error, UsageError)
    assert second == Answer(ticket=2)


def test_unloading_ends_whatever_waits_for_a_model() -> None:
    course = Course()
    course.load(AUTO)
    course.load(OTHER)
    waiting, cancel = course.wish(UnloadWish)

    assert cancel == Cancel()
    assert isinstance(waiting, Answer)
    assert waiting.ticket == 2
    assert isinstance(waiting.error, UsageError)
    first, unloaded = course.tell(Failed(error=FAULT))
    assert isinstance(first, Answer)
    assert isinstance(first.error, UsageError)
    assert unloaded == Answer(ticket=3)
    assert (course.state.asked, course.state.failure) == (None, None)


# --- what is loaded for a while


def returned(course: Course, before: Course | None = None) -> list[Action]:
    asked, epoch = (AUTO, 11) if before is not None else (None, None)
    return course.wish(ReturnWish, lent=OTHER, asked=asked, epoch=epoch)


def test_what_was_lent_gives_way_to_what_was_asked_for_before() -> None:
    course = Course().loaded(AUTO, DESK).loaded(OTHER, DESK)

    assert returned(course, course) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=3)]
    assert course.prompt() == [planned(AUTO)]


def test_what_was_there_before_stays() -> None:
    course = Course().loaded(AUTO, DESK)
    course.load(OTHER)
    course.tell(Failed(error=FAULT))

    assert returned(course, course) == [Answer(ticket=3)]
    assert course.state.is_ready


def test_of_what_could_not_be_lent_no_failure_is_left() -> None:
    course = Course()
    course.load(OTHER)
    course.tell(Failed(error=FAULT))

    assert returned(course) == [Answer(ticket=2)]
    assert (course.state.asked, course.state.failure) == (None, None)


def test_what_somebody_else_loaded_meanwhile_stays() -> None:
    course = Course().loaded(OTHER, DESK).loaded(AUTO, DESK)

    assert returned(course) == [Answer(ticket=3)]
    assert course.state.is_ready
    assert course.state.asked == AUTO
