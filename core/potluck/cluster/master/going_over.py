"""The conversations of a replica that ends go on at another one, whose stages are loaded already, with their caches."""

import logging

from potluck.cluster.driver.bringing import Brought
from potluck.cluster.driver.generation import Generator
from potluck.cluster.master.deployment import Deployment
from potluck.cluster.master.taking_over import DRAIN_S
from potluck.errors import PeerLostError, PotluckError
from potluck.tasks import together
from potluck.wire.cache_messages import ForgetBefore, TakeSessions

logger = logging.getLogger(__name__)


async def go_over(ending: Deployment, heir: Deployment, generator: Generator) -> Brought | None:
    """Have all conversations of a replica go on at another one: also those that are being answered, at once.

    Args:
        ending: the replica that ends. Its pipeline breaks here, and its stages stay loaded.
        heir: the one at which they go on; both answer.
        generator: whose conversations these are.

    Returns:
        What has become of them. None: its stages cannot get their caches, and nothing has changed.
    """
    before, pipeline = ending.pipeline, heir.pipeline
    if before is None or pipeline is None or not (ending.moves_caches and heir.moves_caches):
        return None
    try:
        await together(
            task.computer.take_sessions(
                TakeSessions(
                    epoch=heir.epoch,
                    before=ending.wiring.left_to(task, ()),
                    device=task.assign.device,
                )
            )
            for task in heir.tasks
        )
    except PotluckError as error:  # also one whose program does not know this request
        logger.info("conversations stay where they are: %s", error)
        pipeline.tell(ForgetBefore(epoch=heir.epoch))
        return None
    await before.drain(DRAIN_S)
    bringing = generator.bring(before, pipeline)
    before.fail(PeerLostError("A computer leaves. The answer goes on at another replica."))
    brought = await bringing.run()
    logger.info("conversations went to another replica: %s", brought)
    return brought
