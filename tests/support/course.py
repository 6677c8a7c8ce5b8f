"""A course of events: what happens to a master's state, and which actions come of it."""

from typing import Any

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import ComputerLost
from potluck.cluster.master.decision import next_action
from potluck.cluster.master.state import State
from potluck.cluster.master.transitions import apply
from potluck.cluster.master.vocabulary import (
    Action,
    Began,
    Event,
    Loaded,
    LoadWish,
    MakePlan,
    PlanMade,
    PromptWish,
    Retire,
    Retired,
    Wished,
)
from potluck.errors import EngineError
from potluck.ids import NodeId
from potluck.plan.stages import StagePlan

DESK, LAPTOP, ATTIC = (NodeId(letter * 64) for letter in "abc")
NAMES = {DESK: "Desk", LAPTOP: "Laptop", ATTIC: "Attic"}
AUTO = PlanRequest(model="m")
SPLIT = PlanRequest(model="m", layers=(("Desk", 2), ("Laptop", 2)))
OTHER = PlanRequest(model="other")
DEFAULT = PlanRequest()
NOBODY: frozenset[NodeId] = frozenset()
FAULT = EngineError("The compute process is not running.")


def stages(*nodes: NodeId, device: str = "cpu") -> tuple[StagePlan, ...]:
    return tuple(
        StagePlan(
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


def planned(request: PlanRequest, *, settle: bool = True) -> MakePlan:
    return MakePlan(request=request, settle=settle)


def lost(node: NodeId) -> ComputerLost:
    return ComputerLost(node_id=node, name=NAMES[node], how="stopped answering")
