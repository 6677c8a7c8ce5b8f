"""The master's decisions when computers leave, and about the layers that they hold."""

from course import (
    ATTIC,
    AUTO,
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

from potluck.cluster.events import Holds, StageLost
from potluck.cluster.master.constraints import without_constraints
from potluck.cluster.master.vocabulary import (
    Answer,
    Break,
    Deploy,
    Failed,
    Free,
    Loaded,
    MakePlan,
    PipelineBroke,
    PlanMade,
    Present,
    Retire,
    Retired,
    Tell,
    UnloadWish,
)
from potluck.errors import NotEnoughMemoryError, PeerLostError, RemoteError
from potluck.wire.messages import DeviceId

# --- who leaves, and when


def test_a_lost_computer_without_layers_is_no_matter() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.tell(lost(LAPTOP)) == []
    assert course.state.is_ready


def test_a_computer_lost_while_it_loads_fails_the_load_by_its_name() -> None:
    course = Course()
    course.load(SPLIT)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    told, _ = course.tell(lost(LAPTOP))

    assert isinstance(told, Break)
    assert "Laptop stopped answering before the model was ready" in told.error.message
    assert course.tell(Failed(error=told.error)) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=1, error=told.error)]


def test_a_load_for_any_computers_goes_on_without_the_lost_one() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    both = frozenset({DESK, LAPTOP})

    assert course.tell(Failed(error=PeerLostError("It broke."), node_id=LAPTOP)) == [
        Retire(keep=both)
    ]
    again = MakePlan(request=AUTO, settle=False, avoid=frozenset({LAPTOP}))
    assert course.tell(Retired()) == [again]
    assert course.tell(PlanMade(stages=stages(DESK))) == [Deploy(epoch=12)]
    assert Answer(ticket=1) in course.tell(Loaded())


def test_a_load_that_cannot_do_without_the_lost_computer_says_so() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    course.tell(Failed(error=PeerLostError("Laptop is gone."), node_id=LAPTOP), Retired())
    answer, *_ = course.tell(Failed(error=NotEnoughMemoryError(needed=20, available=10)))

    assert isinstance(answer, Answer)
    assert isinstance(answer.error, PeerLostError)
    assert answer.error.message.startswith(
        "Laptop is gone. The model cannot be loaded without it. The model needs 20 B"
    )


def test_a_computer_that_cannot_take_its_part_of_a_load_is_told_of() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    full = RemoteError("Laptop: the disk is full.", kind="disk_full")

    assert Tell(text=f"{full.message} Potluck tries to load the model without it.") in course.tell(
        Failed(error=full, node_id=LAPTOP)
    )


def test_a_plan_that_a_computer_has_left_is_made_again_without_it() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(Present(computers=frozenset({DESK})))

    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [planned(AUTO)]
    assert course.tell(PlanMade(stages=stages(DESK))) == [Deploy(epoch=11)]


def test_also_when_it_leaves_while_the_plan_before_makes_room() -> None:
    course = Course().loaded(OTHER, DESK, LAPTOP)
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))

    assert course.tell(lost(LAPTOP)) == []
    assert course.tell(Retired()) == [planned(AUTO)]


def test_a_prompt_is_planned_again_without_a_computer_that_was_asked_for() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(PipelineBroke())
    course.prompt()
    course.tell(Present(computers=frozenset({DESK})))

    plan = PlanMade(stages=stages(DESK, LAPTOP))
    assert course.tell(plan) == [planned(without_constraints(SPLIT), settle=False)]


def test_a_load_that_names_a_computer_is_planned_again_when_that_leaves() -> None:
    course = Course()
    course.load(SPLIT)
    course.tell(Present(computers=frozenset({DESK})))

    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [planned(SPLIT)]


def test_a_lost_stage_counts_if_the_plan_in_force_has_it() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, device="cuda:1")), Loaded())
    gone = {"node_id": DESK, "place": "Desk/cuda:1", "how": "lost its compute process"}

    assert course.tell(StageLost(**gone, device=DeviceId(kind="cpu"))) == []
    assert course.tell(StageLost(**gone, epoch=10)) == []
    assert course.state.is_ready
    [told] = course.tell(StageLost(**gone, epoch=11, device=DeviceId(kind="cuda", index=1)))
    assert isinstance(told, Break)
    assert "Desk/cuda:1 lost its compute process" in told.error.message
    assert course.prompt() == [planned(AUTO, settle=False)]  # the computer is here


# --- what computers hold


def test_computers_of_the_next_plan_keep_their_layers_for_it() -> None:
    course = Course(DESK, LAPTOP, ATTIC).loaded(OTHER, DESK, LAPTOP)
    course.load(AUTO)

    plan = PlanMade(stages=stages(LAPTOP, ATTIC))
    assert course.tell(plan) == [Retire(keep=frozenset({LAPTOP, ATTIC}))]
    course.tell(Retired())
    assert course.tell(Loaded()) == [Answer(ticket=2)]
    assert course.state.kept == {}


def test_layers_that_are_moved_by_hand_stay_until_the_next_plan_has_what_was_computed() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.load(AUTO)

    plan = PlanMade(stages=stages(DESK))
    assert course.tell(plan) == [Retire(keep=frozenset({DESK, LAPTOP}))]
    course.tell(Retired())
    assert course.tell(Loaded()) == [Answer(ticket=2), Free(node_id=LAPTOP, epoch=11)]


def test_what_was_kept_for_a_plan_that_fails_is_given_back() -> None:
    course = Course().loaded(OTHER, DESK, LAPTOP)
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(LAPTOP)), Retired(), Failed(error=FAULT))

    assert course.tell(Retired()) == [
        Answer(ticket=2, error=FAULT),
        Free(node_id=LAPTOP, epoch=11),
    ]


def test_what_a_computer_still_holds_waits_for_the_master_that_was_restarted() -> None:
    course = Course()

    assert course.tell(Holds(node_id=LAPTOP, epoch=3)) == []
    assert course.load(AUTO) == [planned(AUTO)]
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    assert course.tell(Loaded()) == [Answer(ticket=1)]  # its assignment took the old one's place
    assert course.tell(Holds(node_id=LAPTOP, epoch=11)) == []


def test_what_no_plan_needs_is_given_back_once_another_one_runs() -> None:
    course = Course()
    course.tell(Holds(node_id=LAPTOP, epoch=3))
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK)))

    assert course.tell(Loaded()) == [Answer(ticket=1), Free(node_id=LAPTOP, epoch=3)]
    assert course.tell(Holds(node_id=LAPTOP, epoch=None)) == []


def test_unloading_gives_back_what_a_master_before_has_left() -> None:
    course = Course()
    course.tell(Holds(node_id=LAPTOP, epoch=3))

    assert course.wish(UnloadWish) == [Free(node_id=LAPTOP, epoch=3), Answer(ticket=1)]
