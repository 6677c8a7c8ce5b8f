"""A second deployment beside the one in force, which serves it.

It is prepared while prompts are answered without it: no answer waits until it is there, and one waits for its work only
within a deadline. When one of its computers is lost, they are answered without it again. One that fails is left alone,
twice as long each time; if one is gone by then, others are looked for. So they are where a plan has none, and computers
come that it was not weighed with.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from potluck.cluster.device_names import device_of
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.events import ComputerLost, StageLost
from potluck.cluster.master.backoff import MOST_S, Backoff
from potluck.cluster.master.deployment import Deployment, Phase
from potluck.cluster.master.losses import is_of
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.stage_deployment import StageDeployment
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.wire.messages import DeviceId, StepFailed

logger = logging.getLogger(__name__)


class Serving(Protocol):
    """What is deployed beside another deployment: a `Deployment`, or a part of that other one."""

    planned: Planned
    epoch: int
    phase: Phase

    @property
    def tasks(self) -> Sequence[StageDeployment]: ...
    @property
    def pipeline(self) -> Pipeline | None:
        """None: it has not begun."""
        ...

    def uses(self, node_id: NodeId, device: DeviceId | None = None) -> bool: ...
    def fail(self, error: PotluckError) -> None: ...
    async def start(self) -> object: ...
    async def stop(self, *, keep: Container[NodeId] = ()) -> None: ...


ServingT = TypeVar("ServingT", bound=Serving)


class Beside(ABC, Generic[ServingT]):
    """Prepares such a deployment, and prepares it again when its computers are back.

    Args:
        name: of its tasks.
        present: the computers that are here.
        deployment: makes the deployment of a plan, beside the one that answers.
        find: finds what could be beside a plan in force, which is as it was if nothing pays.
        tell: shows a line of text to the person at this computer.
        retry_s: how long it is left alone after it failed the first time, or has gone.
        clock: seconds.
        changed: called when it begins to serve or ends, or another one is chosen.

    Attributes:
        deployment: that is being prepared, or serves.
        is_choosing: whether one is looked for, which may measure computers.
    """

    def __init__(
        self,
        name: str,
        *,
        present: Callable[[], Collection[NodeId]],
        deployment: Callable[[Planned, Deployment], ServingT],
        find: Callable[[Planned], Awaitable[Planned]],
        tell: Callable[[str], None],
        retry_s: float,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._present, self._make, self._find = name, present, deployment, find
        self._tell, self._clock, self._changed = tell, clock, changed
        self._answering: tuple[Deployment, Generator] | None = None
        self._work: asyncio.Task[None] | None = None
        self._keep: Container[NodeId] = ()
        self._failing = Backoff[frozenset[NodeId]](retry_s, clock=clock)  # computers together
        self._weighed = frozenset[NodeId]()  # the computers of whom it is known whether one pays
        self.is_choosing = False
        self.deployment: ServingT | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it serves."""
        return self.deployment is not None and self.deployment.pipeline is not None

    @abstractmethod
    def _planned(self, answering: Planned) -> Planned | None:
        """What is deployed beside this; None: nothing."""

    @abstractmethod
    def _is_weighed(self, answering: Planned) -> bool:
        """Whether all that were here as this was planned could have been chosen."""

    @abstractmethod
    def _may_have_some(self, answering: Planned) -> bool:
        """Whether one may be chosen for this without being asked for."""

    @abstractmethod
    async def _serve(
        self, deployment: ServingT, answering: Deployment, generator: Generator
    ) -> None:
        """Have a deployment that has begun serve the other one until it is lost."""

    @abstractmethod
    def _refused(self, names: str, error: PotluckError) -> str:
        """A sentence: why those of these names do not serve."""

    def begin(self, answering: Deployment, generator: Generator) -> None:
        """Prepare what is beside a plan that is in force, if there is something."""
        self._answering = (answering, generator)
        self._failing.clear()
        here = self._present() if self._is_weighed(answering.planned) else ()
        self._weighed = frozenset(here)
        self.look()

    def look(self, *, may_choose: bool = False) -> None:
        """Prepare it if it is not, and all of its computers are here. End it if one of them is about to leave.

        `may_choose`: if the plan has none, and computers came that it was not weighed with, or it is one of a
        recovery, which weighs nobody, one is looked for; and another one in place of one that is gone.
        """
        if self._answering is None:
            return
        answering, generator = self._answering
        planned, here = self._planned(answering.planned), self._present()
        nodes = frozenset[NodeId]() if planned is None else _nodes_of(planned)
        is_here = planned is not None and nodes.issubset(here)
        is_open = planned is not None or not self._weighed.issuperset(here)
        if self._work is not None:
            if self.is_ready and not is_here and not self._work.cancelling():
                self._work.cancel()
        elif not self._failing.is_due(nodes):
            return
        elif planned is not None and is_here:
            self._start(self._run(planned, answering, generator))
        elif may_choose and is_open and self._may_have_some(answering.planned):
            self._weighed = frozenset(here)
            self.is_choosing = True
            self._start(self._choose(answering, nodes))

    async def _choose(self, answering: Deployment, gone: frozenset[NodeId]) -> None:
        """Have a plan in force served by another computer from now on, in place of those that are gone, if one pays."""
        try:
            answering.planned = await self._find(answering.planned)
        except PotluckError as error:
            logger.info("none of the %s is chosen: %s", self._name, error.message)
            self._failing.failed(gone)
        finally:
            self._work, self.is_choosing = None, False
        self._changed()
        self.look()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._work = asyncio.create_task(work, name=self._name)

    async def end(self, *, keep: Container[NodeId] = ()) -> None:
        """Take it out of force. The computers in `keep` keep their layers."""
        self._answering, self._keep = None, keep
        if (work := self._work) is not None:
            work.cancel()
            await asyncio.wait([work])
            self._work = None  # one that had not begun has not done it itself
        self._keep = ()

    def devices_of(self, node: NodeId) -> frozenset[DeviceId]:
        """The devices of a computer that serve, or will."""
        planned = None if self._answering is None else self._planned(self._answering[0].planned)
        stages = () if planned is None else planned.plan.stages
        return frozenset(device_of(stage.device) for stage in stages if stage.node == node)

    def step_failed(self, node: NodeId, failure: StepFailed) -> bool:
        """Take the report of a computer, if it is one of these."""
        deployment = self.deployment
        if deployment is None or not deployment.uses(node):
            return False
        if deployment.pipeline is not None:
            deployment.pipeline.step_failed(failure)
        return True

    def lost(self, lost: ComputerLost | StageLost, error: PotluckError) -> None:
        """Note that a computer was lost, or the stage of a device."""
        if self.deployment is not None and is_of(self.deployment, lost):
            self.deployment.fail(error)

    async def _run(self, planned: Planned, answering: Deployment, generator: Generator) -> None:
        """Have it serve until it is lost, or ended."""
        deployment = self.deployment = self._make(planned, answering)
        nodes, began, has_failed = _nodes_of(planned), self._clock(), True
        try:
            await deployment.start()
            await self._serve(deployment, answering, generator)
        except asyncio.CancelledError:
            has_failed = False
            raise
        except PotluckError as error:
            self._tell(self._refused(names_of(planned), error))
        finally:
            if not has_failed or self._clock() - began >= MOST_S:
                self._failing.worked(nodes)
            self._failing.failed(nodes)
            with suppress(PotluckError):
                await deployment.stop(keep=self._keep)
            self.deployment = self._work = None
            self._changed()


def _nodes_of(planned: Planned) -> frozenset[NodeId]:
    return frozenset(stage.node for stage in planned.plan.stages)


def names_of(planned: Planned) -> str:
    """The names of the computers of a plan, for a sentence."""
    return " and ".join(dict.fromkeys(stage.name for stage in planned.plan.stages))
