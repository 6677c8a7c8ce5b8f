"""The computers that read long prompts for the deployment in force."""

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.reader import Reader
from potluck.cluster.master.beside import Beside, names_of
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.planned import Planned
from potluck.errors import PotluckError
from potluck.ids import NodeId
from potluck.plan.apart import Reading

logger = logging.getLogger(__name__)


class Readers(Beside):
    """Prepares the readers of a deployment, and finds some where a plan has none.

    Args:
        present, deployment, tell, retry_s, clock: as of `Beside`.
        find: finds who could read for a plan in force, where nobody was asked for and nobody does.
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
        super().__init__(
            "readers",
            present=present,
            deployment=deployment,
            tell=tell,
            retry_s=retry_s,
            clock=clock,
        )
        self._find = find
        self._weighed = frozenset[NodeId]()  # the computers of whom it is known whether one pays

    def begin(self, answering: Deployment, generator: Generator) -> None:
        """Prepare the readers of a plan that is in force, if it has some."""
        here = self._present() if answering.planned.readers_weighed else ()
        self._weighed = frozenset(here)
        super().begin(answering, generator)

    def look(self, *, may_choose: bool = False) -> None:
        """Prepare them if they are not, and are all here.

        `may_choose`: if the plan has none, and computers came that it was not weighed with, or it is one of a
        recovery, which weighs nobody, one is looked for.
        """
        super().look()
        if not (may_choose and self._is_due) or self._answering is None:
            return
        answering, here = self._answering[0], self._present()
        planned = answering.planned
        is_looked_for = planned.of_readers is None and planned.may_have_readers
        if is_looked_for and not self._weighed.issuperset(here):
            self._weighed = frozenset(here)
            self._start(self._choose(answering))

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

    def _planned(self, answering: Planned) -> Planned | None:
        return answering.of_readers

    def _refused(self, names: str, error: PotluckError) -> str:
        return f"{names} cannot read prompts. They are read by who answers. {error.message}"

    async def _serve(
        self, deployment: Deployment, answering: Deployment, generator: Generator
    ) -> None:
        names, reading = names_of(deployment.planned), answering.planned.reading
        assert deployment.pipeline is not None
        assert reading is not None
        if not (deployment.moves_caches and answering.moves_caches):
            self._tell(f"{names} cannot read prompts for the others: update Potluck on all.")
            self._answering = None
            return
        reader = Reader(
            pipeline=deployment.pipeline,
            name=names,
            least_tokens=reading.least_tokens,
            most_tokens=reading.most_tokens,
            chunk_tokens=deployment.planned.chunk_tokens,
        )
        generator.read_with(reader, answering.pipeline)
        logger.info("%s read prompts", names)
        try:
            await deployment.wait_broken()
            self._tell(f"{names} cannot read prompts any more. They are read by who answers.")
        finally:
            generator.read_with(None, answering.pipeline)
