"""The master's decisions: sequences of events, and the actions that come of them."""

from typing import Any

import pytest

from potluck.api.schema import PlanRequest
from potluck.cluster.events import ComputerLost, Holds, StageLost
from potluck.cluster.master.state import State, apply, next_action, without_constraints
from potluck.cluster.master.vocabulary import (
    Action,
    Answer,
    Began,
    Break,
    Cancel,
    Deploy,
    Event,
    Failed,
    Free,
    GivenUp,
    Loaded,
    LoadWish,
    MakePlan,
    PipelineBroke,
    PlanMade,
    Present,
    PromptWish,
    Retire,
    Retired,
    ReturnWish,
    UnloadWish,
    Wished,
)
from potluck.errors import EngineError, PeerLostError, UsageError
from potluck.ids import NodeId
from potluck.plan.placement import Stage
from potluck.wire.messages import DeviceId

DESK, LAPTOP, ATTIC = (NodeId(letter * 64) for letter in "abc")
NAMES = {DESK: "Desk", LAPTOP: "Laptop", ATTIC: "Attic"}
AUTO = PlanRequest(model="m")
SPLIT = PlanRequest(model="m", layers=(("Desk", 2), ("Laptop", 2)))
OTHER = PlanRequest(model="other")
DEFAULT = PlanRequest()
NOBODY: frozenset[NodeId] = frozenset()
FAULT = EngineError("The compute process is not running.")


def stages(*nodes: NodeId, device: str = "cpu") -> tuple[Stage, ...]:
    return tuple(
        Stage(
            node=node,
            name=NAMES[node],
            device=device,
            layers=range(index, index + 1),
            embedding=index == 0,
            head=index + 1 == len(nodes),
            predicted_ms=1.0,
            head_ms=0.0,
            prefill_ms=1.0,
            memory=1,
        )
        for index, node in enumerate(nodes)
    )


class Course:
    """What happens to a master, and what it begins."""

    def __init__(self, *here: NodeId) -> None:
        self.state = State(epoch=10, here=frozenset(here or (DESK, LAPTOP)))
        self.begun: list[Action] = []
        self._tickets = 0

    def tell(self, *events: Event) -> list[Action]:
        """What is begun because of these events."""
        before = len(self.begun)
        for event in events:
            self.state = apply(self.state, event)
            while (action := next_action(self.state)) is not None:
                self.begun.append(action)
                self.state = apply(self.state, Began(action=action))
        return self.begun[before:]

    def wish(self, kind: type, **fields: Any) -> list[Action]:
        self._tickets += 1
        return self.tell(Wished(wish=kind(ticket=self._tickets, **fields)))

    def load(self, request: PlanRequest, *, anew: bool = False) -> list[Action]:
        return self.wish(LoadWish, request=request, anew=anew)

    def prompt(self) -> list[Action]:
        return self.wish(PromptWish, default=DEFAULT)

    def loaded(self, request: PlanRequest, *nodes: NodeId) -> "Course":
        """With a model in force on these computers."""
        self.load(request)
        self.tell(PlanMade(stages=stages(*nodes)))
        if isinstance(self.state.work, Retire):
            self.tell(Retired())
        self.tell(Loaded())
        assert self.state.is_ready
        return self


def planned(ticket: int, request: PlanRequest, *, settle: bool = True) -> MakePlan:
    return MakePlan(ticket=ticket, request=request, settle=settle)


def lost(node: NodeId) -> ComputerLost:
    return ComputerLost(node_id=node, name=NAMES[node], how="stopped answering")


# --- a load


def test_a_load_is_planned_deployed_and_answered() -> None:
    course = Course()

    assert course.load(AUTO) == [planned(1, AUTO)]
    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [Deploy(epoch=11)]
    assert not course.state.is_ready
    assert course.tell(Loaded()) == [Answer(ticket=1)]
    assert course.state.is_ready
    assert course.state.asked == AUTO


def test_what_is_loaded_as_asked_is_not_loaded_again() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.load(AUTO) == [Answer(ticket=2)]
    assert course.load(AUTO, anew=True) == [planned(3, AUTO)]


def test_another_model_is_planned_before_the_one_before_makes_room() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.load(OTHER) == [planned(2, OTHER)]
    assert course.state.is_ready  # prompts that are under way go on
    assert course.tell(PlanMade(stages=stages(LAPTOP))) == [Retire(keep=frozenset({LAPTOP}))]
    assert course.tell(Retired()) == [Deploy(epoch=12)]
    assert course.state.asked == OTHER


def test_loads_come_one_after_the_other() -> None:
    course = Course()
    course.load(AUTO)

    assert course.load(OTHER) == []
    course.tell(PlanMade(stages=stages(DESK)))
    assert course.tell(Loaded()) == [Answer(ticket=1), planned(2, OTHER)]


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
    assert course.prompt() == [planned(2, SPLIT)]
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
    assert course.prompt() == [planned(1, DEFAULT)]
    course.tell(PlanMade(stages=stages(DESK)), Loaded())
    assert course.prompt() == [Answer(ticket=2)]
    assert course.state.asked == DEFAULT


def test_a_prompt_loads_again_what_broke_by_itself() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)

    assert course.tell(PipelineBroke()) == []
    assert course.prompt() == [planned(2, SPLIT)]


def test_a_lost_computer_breaks_what_runs_and_is_named() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    [told] = course.tell(lost(LAPTOP))

    assert isinstance(told, Break)
    assert "Laptop stopped answering" in told.error.message
    assert told.notice == "Laptop stopped answering. The next message runs without it."
    assert not course.state.is_ready


def test_the_next_prompt_runs_on_who_is_left_and_waits_for_nobody() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(lost(LAPTOP))

    assert course.prompt() == [planned(2, without_constraints(SPLIT), settle=False)]
    course.tell(PlanMade(stages=stages(DESK)), Retired(), Loaded())
    assert course.state.asked == SPLIT  # once everyone is back


def test_a_computer_that_is_back_before_the_next_prompt_gets_its_layers_again() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(lost(LAPTOP), Present(computers=frozenset({DESK, LAPTOP})))

    assert course.prompt() == [planned(2, SPLIT, settle=False)]


@pytest.mark.parametrize("request_", [SPLIT, AUTO])
def test_a_computer_that_is_back_is_used_by_the_next_load(request_: PlanRequest) -> None:
    course = Course().loaded(request_, DESK, LAPTOP)
    course.tell(lost(LAPTOP))
    course.prompt()
    course.tell(PlanMade(stages=stages(DESK)), Retired(), Loaded())

    assert course.load(request_) == [Answer(ticket=3)]  # it is not back yet
    course.tell(Present(computers=frozenset({DESK, LAPTOP})))
    assert course.load(request_) == [planned(4, request_)]
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)), Retired(), Loaded())
    assert course.load(request_) == [Answer(ticket=5)]


def test_without_constraints_the_model_stays_the_same() -> None:
    request = PlanRequest(model="m", scheme="bf16", layers=(("a", 1),), workers=2, context=9)
    assert without_constraints(request) == PlanRequest(model="m", scheme="bf16", context=9)


# --- who leaves, and when


def test_a_lost_computer_without_layers_is_no_matter() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.tell(lost(LAPTOP)) == []
    assert course.state.is_ready


def test_a_computer_lost_while_it_loads_fails_the_load_by_its_name() -> None:
    course = Course()
    course.load(SPLIT)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))
    [told] = course.tell(lost(LAPTOP))

    assert isinstance(told, Break)
    assert "Laptop stopped answering before the model was ready" in told.error.message
    assert course.tell(Failed(error=told.error)) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=1, error=told.error)]


def test_a_plan_that_a_computer_has_left_is_made_again_without_it() -> None:
    course = Course()
    course.load(AUTO)
    course.tell(Present(computers=frozenset({DESK})))

    assert course.tell(PlanMade(stages=stages(DESK, LAPTOP))) == [planned(1, AUTO)]
    assert course.tell(PlanMade(stages=stages(DESK))) == [Deploy(epoch=11)]


def test_also_when_it_leaves_while_the_plan_before_makes_room() -> None:
    course = Course().loaded(OTHER, DESK, LAPTOP)
    course.load(AUTO)
    course.tell(PlanMade(stages=stages(DESK, LAPTOP)))

    assert course.tell(lost(LAPTOP)) == []
    assert course.tell(Retired()) == [planned(2, AUTO)]


def test_a_prompt_is_planned_again_without_a_computer_that_was_asked_for() -> None:
    course = Course().loaded(SPLIT, DESK, LAPTOP)
    course.tell(PipelineBroke())
    course.prompt()
    course.tell(Present(computers=frozenset({DESK})))

    plan = PlanMade(stages=stages(DESK, LAPTOP))
    assert course.tell(plan) == [planned(2, without_constraints(SPLIT), settle=False)]


def test_a_load_that_names_a_computer_fails_when_that_leaves() -> None:
    course = Course()
    course.load(SPLIT)
    course.tell(Present(computers=frozenset({DESK})))
    [answer] = course.tell(PlanMade(stages=stages(DESK, LAPTOP)))

    assert isinstance(answer, Answer)
    assert isinstance(answer.error, PeerLostError)
    assert "Laptop left" in answer.error.message


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
    assert course.prompt() == [planned(2, AUTO, settle=False)]  # the computer is here


# --- unloading


def test_unloading_frees_everyone_and_forgets_what_was_asked() -> None:
    course = Course().loaded(AUTO, DESK)

    assert course.wish(UnloadWish) == [Retire(keep=NOBODY)]
    assert course.tell(Retired()) == [Answer(ticket=2)]
    assert course.prompt() == [planned(3, DEFAULT)]


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
    assert course.prompt() == [planned(4, AUTO)]


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


# --- what computers hold


def test_computers_of_the_next_plan_keep_their_layers_for_it() -> None:
    course = Course(DESK, LAPTOP, ATTIC).loaded(OTHER, DESK, LAPTOP)
    course.load(AUTO)

    plan = PlanMade(stages=stages(LAPTOP, ATTIC))
    assert course.tell(plan) == [Retire(keep=frozenset({LAPTOP, ATTIC}))]
    course.tell(Retired())
    assert course.tell(Loaded()) == [Answer(ticket=2)]
    assert course.state.kept == {}


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
    assert course.load(AUTO) == [planned(1, AUTO)]
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
