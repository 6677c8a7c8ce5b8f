"""The master's loop: events change its state, and the actions that are due then are begun.

`decision.py` decides, and `Carrying` carries out: it begins each action, and reports to the state how the action
ended and what else happened.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import TypeAlias, assert_never

from potluck.cluster.computer import Computers
from potluck.cluster.device_use import DeviceUse
from potluck.cluster.driver.generation import Generator
from potluck.cluster.events import (
    Events,
    ModelChanged,
    Notice,
)
from potluck.cluster.master.callers import Callers
from potluck.cluster.master.decision import next_action
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.loader import Loader
from potluck.cluster.master.readers import Readers
from potluck.cluster.master.replicas import Replicas
from potluck.cluster.master.shortages import Shortages
from potluck.cluster.master.spare_copies import SpareCopies
from potluck.cluster.master.state import State
from potluck.cluster.master.transitions import apply
from potluck.cluster.master.viewers import Viewers
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
    ImproveWish,
    LoadWish,
    MakePlan,
    PipelineBroke,
    Present,
    Promote,
    PromptWish,
    RecoveryWish,
    Retire,
    Tell,
    Wish,
    Wished,
)
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.tasks import TaskSet
from potluck.wire.messages import DeviceId

logger = logging.getLogger(__name__)

_Granted: TypeAlias = tuple[Deployment, Generator] | None


class Carrying:
    """The master's state, and the actions that are under way for it.

    Args:
        computers: this computer and the connected workers.
        loader: carries out the long actions.
        events: receives `ModelChanged` and `Notice`.
        use: told which devices of this computer have a stage of this master's plan.
    """

    def __init__(
        self, computers: Computers, loader: Loader, events: Events, use: DeviceUse
    ) -> None:
        # A random first epoch: two masters should not use the same one.
        self._state = State(epoch=secrets.randbelow(1 << 30))
        self._computers, self._loader = computers, loader
        self._events, self._use = events, use
        self.shortages = Shortages()
        self._inbox: deque[Event] = deque()
        self._is_deciding = False
        self._callers = Callers[_Granted]()
        self._work: asyncio.Task[Event] | None = None  # the action that is under way
        self._tasks = TaskSet()

    @property
    def deployment(self) -> Deployment | None:
        """The plan that is in force, or being put into force."""
        return self._loader.deployment

    @property
    def _used(self) -> frozenset[NodeId]:
        stages = self.deployment.planned.plan.stages if self.deployment is not None else ()
        return frozenset(stage.node for stage in stages)

    @property
    def _is_broken(self) -> bool:
        pipeline = self.deployment.pipeline if self.deployment is not None else None
        return pipeline is not None and pipeline.broken is not None

    @property
    def spares(self) -> SpareCopies:
        """What the workers have on their disks in case another one is lost."""
        return self._loader.spares

    @property
    def readers(self) -> Readers:
        """Who reads long prompts for the deployment in force."""
        return self._loader.readers

    @property
    def replicas(self) -> Replicas:
        """The other times that the model is held, beside the deployment in force."""
        return self._loader.replicas

    @property
    def viewers(self) -> Viewers:
        """Who reads pictures for the first stage of the deployment in force."""
        return self._loader.viewers

    @property
    def _beside(self) -> tuple[Readers, Viewers, Replicas]:
        return self.readers, self.viewers, self.replicas

    def _present(self) -> Present:
        here = (self._computers.local, *self._computers.available())
        leaving, replica = self._computers.leaving(), self.replicas.ready
        return Present(
            computers=frozenset(computer.node_id for computer in here),
            leaving=frozenset(computer.node_id for computer in leaving),
            pauses={c.node_id: c.pause for c in leaving if c.pause is not None},
            replica=None if replica is None else replica.planned.plan.stages,
        )

    async def _ask(self, wish: Wish) -> _Granted:
        """Wait until a wish is granted. If the caller is cancelled, what was begun for it alone is undone first.

        Unloading goes on.
        """
        waiting = self._callers.wait(wish.ticket)
        self.happened(Wished(wish=wish))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            is_undone = isinstance(wish, LoadWish | PromptWish | RecoveryWish | ImproveWish)
            if is_undone and not waiting.done():
                self.happened(GivenUp(ticket=wish.ticket))
                await asyncio.wait([waiting])
            raise

    # --- events

    def happened(self, event: Event) -> None:
        """Tell the state an event, and begin the actions that are due now."""
        if isinstance(event, Wished):
            self.spares.interrupt()
        self.shortages.heard(event, self._used)
        self._inbox.append(event)
        if self._is_deciding:
            return  # an action that is being begun sent this event: the loop below takes it next
        self._is_deciding = True
        try:
            while self._inbox:
                self._decide(self._inbox.popleft())
        finally:
            self._is_deciding = False
        self._events.publish(ModelChanged())

    def _decide(self, event: Event) -> None:
        # Read with each event: a computer that pauses and a pipeline that fails send none of their own.
        state = apply(self._state, self._present())
        if self._is_broken:
            state = apply(state, PipelineBroke())
        self._state = apply(state, event)
        while (action := next_action(self._state)) is not None:
            self._state = apply(self._state, Began(action=action))
            self._begin(action)
        deployed, local = self._state.deployed, self._computers.local.node_id
        own = deployed.devices_of(local) if deployed is not None else frozenset[DeviceId]()
        self._use.own = own.union(*(beside.devices_of(local) for beside in self._beside))

    # --- carrying out the actions

    def _begin(self, action: Action) -> None:
        match action:
            case MakePlan():
                self._start(self._loader.make_plan(action))
            case Deploy(epoch=epoch):
                self._start(self._loader.deploy(epoch))
            case Retire(keep=keep):
                self._start(self._loader.retire(keep))
            case Cancel():
                assert self._work is not None
                self._work.cancel()
            case Break(error=error, drains=drains):
                assert self.deployment is not None
                if drains:
                    self._tasks.spawn(self._withdraw(self.deployment, error), name="withdraw")
                else:
                    self.deployment.fail(error)
            case Promote():
                self._loader.promote()
            case Tell(text=text):
                self._events.publish(Notice(level="warning", text=text))
            case Answer(ticket=ticket, error=error):
                self._callers.answer(ticket, self._loader.loaded, error)
            case Free(node_id=node_id, epoch=epoch):
                self._tasks.spawn(self._loader.free(node_id, epoch), name="free")
            case _:
                assert_never(action)

    async def _withdraw(self, deployment: Deployment, error: PotluckError) -> None:
        """End a deployment of which a computer gives its layers back, and go on without it, whether somebody asks or not."""
        await deployment.withdraw(error)
        with suppress(PotluckError):  # the state has it
            await self._ask(RecoveryWish(ticket=self._callers.ticket()))

    def _start(self, work: Coroutine[None, None, Event]) -> None:
        self._work = asyncio.create_task(work, name="load")
        self._work.add_done_callback(self._ended)

    def _ended(self, work: asyncio.Task[Event]) -> None:
        """Report the end of an action to the state, also if it was cancelled or has failed."""
        if work.cancelled():
            self.happened(Failed(error=asyncio.CancelledError()))
        elif (error := work.exception()) is not None:
            self.happened(Failed(error=error, node_id=self._loader.culprit))
        else:
            self.happened(work.result())
