"""The computers that read long prompts for the deployment in force: a second deployment beside it.

Answers never wait for it. It is prepared while prompts are answered without it, and when one of its computers is lost,
prompts are read where they are answered, until that one is back.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Container
from contextlib import suppress
from dataclasses import replace

from potluck.cluster.device_names import device_of
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.reader import Reader
from potluck.cluster.events import ComputerLost, StageLost
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.losses import is_of
from potluck.cluster.master.planned import Planned
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.apart import Reading
from potluck.wire.messages import DeviceId, StepFailed

logger = logging.getLogger(__name__)


class Readers:
    """Prepares the readers of a deployment, and prepares them again when they are back.

    Args:
        present: the computers that are here.
        deployment: makes the deployment of a plan of readers, for the one that answers.
        find: finds who could read for a plan in force, where nobody was asked for and nobody does.
        tell: shows a line of text to the person at this computer.
        retry_s: how long they are left alone after they failed.
        clock: seconds.
    """

    def __init__(
        self,
        *,
        present: Callable[[], Collection[NodeId]],
        deployment: Callable[[Planned, Deployment], Deployment],
        find: Callable[[Planned], Awaitable[Reading | None]],
        tell: Callable[[str], None],
        retry_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._present, self._make, self._find = present, deployment, find
        self._weighed = frozenset[NodeId]()  # the computers of whom it is known whether one pays
        self._tell, self._retry_s, self._clock = tell, retry_s, clock
        self._answering: tuple[Deployment, Generator] | None = None
        self._work: asyncio.Task[None] | None = None
        self._keep: Container[NodeId] = ()
        self._next = 0.0  # time before which nothing is tried again
        self.deployment: Deployment | None = None  # that is being prepared, or reads

    @property
    def is_ready(self) -> bool:
        """Whether they read."""
        return self.deployment is not None and self.deployment.pipeline is not None

    def begin(self, answering: Deployment, generator: Generator) -> None:
        """Prepare the readers of a plan that is in force, if it has some."""
        self._answering, self._next = (answering, generator), 0.0
        here = self._present() if answering.planned.readers_weighed else ()
        self._weighed = frozenset(here)
        self.look()

    def look(self, *, may_choose: bool = False) -> None:
        """Prepare them if they are not, and are all here.

        `may_choose`: if the plan has none, and computers came that it was not weighed with, or it is one of a
        recovery, which weighs nobody, one is looked for.
        """
        if self._answering is None or self._work is not None or self._clock() < self._next:
            return
        answering, generator = self._answering
        planned = answering.planned.of_readers
        here = self._present()
        if planned is not None and all(stage.node in here for stage in planned.plan.stages):
            self._work = asyncio.create_task(
                self._read(planned, answering, generator), name="readers"
            )
            return
        is_looked_for = may_choose and planned is None and answering.planned.may_have_readers
        if is_looked_for and not self._weighed.issuperset(here):
            self._weighed = frozenset(here)
            self._work = asyncio.create_task(self._choose(answering), name="readers")

    async def _choose(self, answering: Deployment) -> None:
        """Have a plan in force read by another computer from now on, if one pays."""
        try:
            reading = await self._find(answering.planned)
            if reading is not None:
                logger.info("a reader is chosen: %s", reading.explanation)
                answering.planned = replace(answering.planned, reading=reading)
        except PotluckError as error:
            logger.info("no reader is chosen: %s", error.message)
        finally:
            self._work = None
        self.look()

    async def end(self, *, keep: Container[NodeId] = ()) -> None:
        """Take them out of force. The computers in `keep` keep their layers."""
        self._answering, self._keep = None, keep
        if (work := self._work) is not None:
            work.cancel()
            await asyncio.wait([work])
            self._work = None  # one that had not begun has not done it itself
        self._keep = ()

    def devices_of(self, node: NodeId) -> frozenset[DeviceId]:
        """The devices of a computer that read, or will."""
        planned = None if self._answering is None else self._answering[0].planned.of_readers
        stages = () if planned is None else planned.plan.stages
        return frozenset(device_of(stage.device) for stage in stages if stage.node == node)

    def step_failed(self, node: NodeId, failure: StepFailed) -> bool:
        """Take the report of a computer, if it is a reader."""
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

    async def _read(self, planned: Planned, answering: Deployment, generator: Generator) -> None:
        """Have the readers read until they are lost, or ended."""
        reading = planned.plan.stages
        names = " and ".join(dict.fromkeys(stage.name for stage in reading))
        deployment = self.deployment = self._make(planned, answering)
        try:
            pipeline = await deployment.start()
            assert answering.planned.reading is not None
            reader = Reader(
                pipeline=pipeline,
                name=names,
                least_tokens=answering.planned.reading.least_tokens,
                most_tokens=answering.planned.reading.most_tokens,
                chunk_tokens=planned.chunk_tokens,
            )
            if deployment.moves_caches and answering.moves_caches:
                generator.read_with(reader, answering.pipeline)
                logger.info("%s read prompts", names)
                await deployment.wait_broken()
                self._tell(f"{names} cannot read prompts any more. They are read by who answers.")
            else:
                self._tell(f"{names} cannot read prompts for the others: update Potluck on all.")
                self._answering = None
        except PotluckError as error:
            self._tell(
                f"{names} cannot read prompts. They are read by who answers. {error.message}"
            )
        finally:
            self._next = self._clock() + self._retry_s
            generator.read_with(None, answering.pipeline)
            with suppress(PotluckError):
                await deployment.stop(keep=self._keep)
            self.deployment = self._work = None
