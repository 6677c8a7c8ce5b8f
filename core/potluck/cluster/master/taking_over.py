"""The next plan takes the conversations of the one before over (`driver/bringing.py`)."""

import asyncio
import logging

from potluck.cluster.computer import Computer, Computers
from potluck.cluster.driver.generation import Generator
from potluck.cluster.events import Events, Notice
from potluck.cluster.master.deployment import Deployment, unload
from potluck.cluster.master.planned import Planned
from potluck.tasks import end, together

logger = logging.getLogger(__name__)

DRAIN_S = 5.0  # for the steps under way when plans change; their tokens are else computed again


class TakingOver:
    """Keeps the deployment that has ended until the next one has its conversations.

    Args:
        computers: this computer and the connected workers.
        events: told what has become of the conversations, if a computer leaves.
    """

    def __init__(self, computers: Computers, events: Events) -> None:
        self._computers, self._events = computers, events
        self._left: Deployment | None = None  # whose conversations the next one may take over
        self._bringing: asyncio.Task[None] | None = None  # brings them

    def leave(self, deployment: Deployment, planned: Planned | None) -> None:
        """Note a deployment that ends: with the plan that was made last its conversations may go on."""
        self._left = deployment if _goes_on_with(deployment, planned) else None

    async def drain(self, deployment: Deployment) -> None:
        """Wait for the steps under way, so that all stages have the same tokens; not for long.

        What comes to these stages from the plan before comes first: they compute meanwhile.
        """
        if self._left is deployment and deployment.pipeline is not None:
            await self.settled()
            await deployment.pipeline.drain(DRAIN_S)

    def take(self) -> Deployment | None:
        """The deployment whose conversations the next one may take over."""
        left, self._left = self._left, None
        return left

    def begin(self, deployment: Deployment, generator: Generator) -> None:
        """Begin to have the conversations' caches brought from the plan before, if there is one."""
        before = deployment.take_before()
        if before is None or before.pipeline is None or deployment.pipeline is None:
            return
        bringing = generator.bring(before.pipeline, deployment.pipeline)
        gone = self._withdrawn(before, deployment)
        leaving = [computer.node_id for computer in self._computers.leaving()]
        is_left = bool(gone) or any(map(before.uses, leaving))

        async def bring() -> None:
            brought = await bringing.run()
            logger.info("conversations taken over: %s", brought)
            if is_left and (text := brought.told):
                self._events.publish(Notice(level="info", text=text))
            await together(unload(computer, before.epoch) for computer in gone)

        self._bringing = asyncio.create_task(bring(), name="bring")

    def _withdrawn(self, before: Deployment, deployment: Deployment) -> list[Computer]:
        """The computers that have given their layers back, and have only caches of the plan before."""
        known = (self._computers.local, *self._computers.available(), *self._computers.leaving())
        here = {computer.node_id for computer in known}
        found = {task.stage.node: task.computer for task in before.tasks}
        return [c for node, c in found.items() if node not in here and not deployment.uses(node)]

    async def settled(self) -> None:
        """Wait until nobody gets caches from the plan before any more."""
        if self._bringing is not None:
            await asyncio.wait([self._bringing])

    async def end(self) -> None:
        """Bring no more: nothing comes to these stages any more."""
        if self._bringing is not None:
            await end(self._bringing)


def _goes_on_with(deployment: Deployment, planned: Planned | None) -> bool:
    """Whether a plan is another one of the same model."""
    pipeline = deployment.pipeline
    if planned is None or pipeline is None:
        return False
    if pipeline.broken is not None and not pipeline.is_draining:
        return False
    is_other = planned.plan is not deployment.planned.plan
    return is_other and planned.model_in_use == deployment.planned.model_in_use
