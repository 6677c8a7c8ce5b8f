"""The computer that reads pictures for the first stage of the deployment in force."""

import asyncio
import logging

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.viewer import Viewer
from potluck.cluster.master.beside import Beside, names_of
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.planned import Planned
from potluck.errors import PeerLostError, PotluckError
from potluck.tasks import end

logger = logging.getLogger(__name__)

LEAST_S = 15.0  # for a picture: the first one may have kernels compiled
FACTOR = 2.0  # times as long as the first stage would take: who waits any longer gains nothing


class Viewers(Beside):
    """Prepares the viewer of a deployment, and finds one where a plan has none."""

    def _is_weighed(self, answering: Planned) -> bool:
        return True

    def _may_have_some(self, answering: Planned) -> bool:
        return answering.may_have_viewer and answering.model.config.tower is not None

    def _planned(self, answering: Planned) -> Planned | None:
        return answering.of_viewer

    def _refused(self, names: str, error: PotluckError) -> str:
        return f"{names} cannot read pictures for the others, so they take longer. {error.message}"

    async def _serve(
        self, deployment: Deployment, answering: Deployment, generator: Generator
    ) -> None:
        planned, tower = answering.planned, deployment.planned.model.config.tower
        assert planned.viewing is not None
        assert tower is not None
        names = names_of(deployment.planned)
        viewer = Viewer(
            await deployment.reach(0),
            epoch=deployment.epoch,
            numbers=tower.row,
            name=names,
            limit_s=LEAST_S + FACTOR * planned.viewing.first_ms / 1000,
        )
        running = asyncio.create_task(viewer.run(), name="viewer")
        generator.view_with(viewer, answering.pipeline)
        logger.info("%s reads pictures", names)
        self._changed()
        try:
            broken = asyncio.create_task(deployment.wait_broken(), name="viewer broken")
            await asyncio.wait((running, broken), return_when=asyncio.FIRST_COMPLETED)
            await end(broken)
            self._tell(
                f"{names} cannot read pictures for the others any more, so they take longer."
            )
        finally:
            generator.view_with(None, answering.pipeline)
            viewer.fail(PeerLostError(f"{names} does not read pictures any more."))
            await end(running)
