"""The computer that reads pictures for the first stage of the deployment in force: one beside it, or one of its later stages."""

import asyncio
import logging
from collections.abc import Callable, Container, Sequence

from potluck.cluster.driver.chain_ends import ActivationLink
from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.pipeline import Pipeline
from potluck.cluster.driver.viewer import Viewer
from potluck.cluster.master.beside import Beside, names_of
from potluck.cluster.master.deployment import Deployment, Phase
from potluck.cluster.master.planned import Planned
from potluck.cluster.master.stage_deployment import StageDeployment
from potluck.errors import PeerLostError, PotluckError
from potluck.ids import NodeId
from potluck.tasks import end
from potluck.wire.messages import DeviceId

logger = logging.getLogger(__name__)

LEAST_S = 15.0  # for a picture: the first one may have kernels compiled
FACTOR = 2.0  # times as long as the first stage would take: who waits any longer gains nothing


class StageInForce:
    """A stage with layers that reads pictures too, of the deployment that answers, as if it was one of its own.

    That one starts it, loses it and stops it.
    """

    tasks: Sequence[StageDeployment] = ()

    def __init__(self, planned: Planned, answering: Deployment, place: int) -> None:
        """`place`: of the stage, among those of the deployment."""
        self.planned, self.epoch = planned, answering.epoch
        self.phase: Phase = "loading"
        self.pipeline: Pipeline | None = None
        self._answering, self._place = answering, place

    def uses(self, node_id: NodeId, device: DeviceId | None = None) -> bool:
        return False  # what is said of its computer is for the other one

    def fail(self, error: PotluckError) -> None:
        self._answering.fail(error)

    async def start(self) -> None:
        self.pipeline = self._answering.pipeline

    async def stop(self, *, keep: Container[NodeId] = ()) -> None:
        self.pipeline = None

    async def reach(self, index: int) -> ActivationLink:
        """A connection of the driver to the stage."""
        return await self._answering.reach(self._place + index)

    async def wait_broken(self) -> None:
        await self._answering.wait_broken()


def viewer_of(
    beside: Callable[[Planned, Deployment], Deployment], planned: Planned, answering: Deployment
) -> Deployment | StageInForce:
    """What reads pictures for a deployment: a stage of it, or one that `beside` makes."""
    viewing = answering.planned.viewing
    if viewing is None or viewing.place is None:
        return beside(planned, answering)
    return StageInForce(planned, answering, viewing.place)


class Viewers(Beside["Deployment | StageInForce"]):
    """Prepares the viewer of a deployment, and finds one where a plan has none."""

    def _is_weighed(self, answering: Planned) -> bool:
        return True

    def _may_have_some(self, answering: Planned) -> bool:
        has_own = answering.viewing is not None and answering.viewing.place is not None
        sees = answering.model.config.tower is not None
        return sees and answering.may_have_viewer and not has_own

    def _planned(self, answering: Planned) -> Planned | None:
        return answering.of_viewer

    def _refused(self, names: str, error: PotluckError) -> str:
        return f"{names} cannot read pictures for the others, so they take longer. {error.message}"

    async def _serve(
        self,
        deployment: Deployment | StageInForce,
        answering: Deployment,
        generator: Generator,
    ) -> None:
        planned, tower = answering.planned, deployment.planned.model.config.tower
        assert planned.viewing is not None
        assert tower is not None
        names = names_of(deployment.planned)
        pipeline = answering.pipeline
        assert pipeline is not None
        is_within = planned.viewing.place is not None
        viewer = Viewer(
            await deployment.reach(0),
            epoch=deployment.epoch,
            numbers=tower.row,
            name=names,
            limit_s=LEAST_S + FACTOR * planned.viewing.first_ms / 1000,
            begins=pipeline.reads_picture if is_within else lambda rows: None,
        )
        running = asyncio.create_task(viewer.run(), name="viewer")
        generator.view_with(viewer, pipeline)
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
            generator.view_with(None, pipeline)
            viewer.fail(PeerLostError(f"{names} does not read pictures any more."))
            await end(running)
