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


class Readers(Beside[Deployment]):
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
            find=self._found,
            tell=tell,
            retry_s=retry_s,
            clock=clock,
        )
        self._reading_beside = find

    async def _found(self, planned: Planned) -> Planned:
        reading = await self._reading_beside(planned)
        if reading is not None:
            logger.info("a reader is chosen: %s", reading.explanation)
        return replace(planned, reading=reading)

    def _is_weighed(self, answering: Planned) -> bool:
        return answering.readers_weighed

    def _may_have_some(self, answering: Planned) -> bool:
        return answering.may_have_readers

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
            alone_s=lambda new, cached: answering.planned.prompt_ms(new, cached=cached) / 1000,
        )
        generator.read_with(reader, answering.pipeline)
        logger.info("%s read prompts", names)
        try:
            await deployment.wait_broken()
            self._tell(f"{names} cannot read prompts any more. They are read by who answers.")
        finally:
            generator.read_with(None, answering.pipeline)
