"""The connections that a stage makes as it is loaded."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple, TypeAlias

from potluck.cluster.processes.messages import LoadStage
from potluck.cluster.stage.joining import dial_above
from potluck.cluster.stage.ranks import Links
from potluck.cluster.stage.transfers import CacheTarget
from potluck.errors import PotluckError, UnreachableError
from potluck.ids import HomeId
from potluck.net.transport import StepLink
from potluck.wire.messages import CacheHop, Hop, Purpose

logger = logging.getLogger(__name__)

BEFORE_TIMEOUT_S = 3.0  # for a stage of the plan before; without it, tokens are computed again


Dial: TypeAlias = Callable[[HomeId, Hop, Purpose], Awaitable[StepLink]]


class Connected(NamedTuple):
    """The connections of a stage.

    Attributes:
        following: to the next stage; None: it is the last one.
        ranks: to the ranks above its own; None: it is in no group.
        targets: to those for which it reads prompts.
        sources: to stages of the plan before, as far as they are reached.
    """

    following: StepLink | None
    ranks: Links | None
    targets: list[CacheTarget]
    sources: list[CacheTarget]


class Dialling:
    """Connects a stage with others. `if_it_fails` closes the connections."""

    def __init__(self, dial: Dial, if_it_fails: AsyncExitStack) -> None:
        self._dial_one, self._if_it_fails = dial, if_it_fails

    async def connect(self, message: LoadStage) -> Connected:
        """Make the connections that a load names.

        Raises:
            UnreachableError: a stage does not answer; its node is in `data`. Those of the plan before are left out.
        """
        home = HomeId(message.home)

        async def dial(hop: Hop, purpose: Purpose = "activations") -> StepLink:
            return await self._dial(hop, home, purpose)

        following = None if message.next_hop is None else await dial(message.next_hop)
        targets = [_target(hop, await dial(hop)) for hop in message.cache_hops]
        hops = () if message.before is None else message.before.hops
        found = await asyncio.gather(*(self._dial_before(hop, home) for hop in hops))
        sources = [source for source in found if source is not None]
        ranks = None
        if message.ranks is not None:
            ranks = await dial_above(message.ranks, message.epoch, dial)
        return Connected(following, ranks, targets, sources)

    async def all_before(self, hops: Sequence[CacheHop], home: HomeId) -> list[CacheTarget]:
        """Connect with all stages of a plan that ends, which a stage in force is to take sessions over from.

        Raises:
            UnreachableError: one does not answer in time.
        """
        found = await asyncio.gather(*(self._dial_before(hop, home) for hop in hops))
        for hop, source in zip(hops, found, strict=True):
            if source is None:
                raise UnreachableError(
                    "A stage of the other replica is not reached.", node=hop.node_id
                )
        return [source for source in found if source is not None]

    async def _dial_before(self, hop: CacheHop, home: HomeId) -> CacheTarget | None:
        try:
            async with asyncio.timeout(BEFORE_TIMEOUT_S):
                return _target(hop, await self._dial(hop, home, "activations"))
        except (PotluckError, TimeoutError) as error:
            logger.info("a stage of the plan before is not reached: %s", error)
            return None

    async def _dial(self, hop: Hop, home: HomeId, purpose: Purpose) -> StepLink:
        link = await self._dial_one(home, hop, purpose)
        self._if_it_fails.callback(link.close)
        return link


def _target(hop: CacheHop, link: StepLink) -> CacheTarget:
    share = None if hop.share is None else hop.share.share
    return CacheTarget(link, range(*hop.layers), share)
