"""Connect the ranks of a group with each other: each dials the ranks above it, and waits for those below."""

import asyncio
from collections.abc import Awaitable, Callable

from potluck.cluster.stage.ranks import Links
from potluck.errors import PeerTimeoutError, PotluckError
from potluck.ids import HomeId, NodeId
from potluck.net.step_link import StepLink
from potluck.wire.messages import Hop, Purpose, RankPlace
from potluck.wire.rank_messages import JoinRanks

JOIN_S = 45.0  # all ranks are loaded at the same time, and dial before they read weights
_FIRST_S = 10.0  # for the first message of a connection
_MOST = 32  # connections that wait for a load

Dial = Callable[[Hop, Purpose], Awaitable[StepLink]]
_Key = tuple[HomeId, NodeId, int, int]  # home, node that dialled, epoch, rank


async def dial_above(place: RankPlace, epoch: int, dial: Dial) -> Links:
    """Connections with the ranks above; those of rank 0 also for the steps that it passes on.

    Raises:
        PotluckError: as `dial`.
    """
    sums: dict[int, StepLink] = {}
    steps: list[StepLink] = []
    try:
        for rank in range(place.rank + 1, len(place.hops)):
            sums[rank] = await dial(place.hops[rank], "ranks")
            sums[rank].send_nowait(JoinRanks(epoch=epoch, rank=place.rank))
            if place.rank == 0:
                steps.append(await dial(place.hops[rank], "activations"))
    except BaseException:
        Links(sums=sums, steps=steps).close()
        raise
    return Links(sums=sums, steps=steps)


class Lobby:
    """Where connections of other ranks wait until this process loads the stage that they are for."""

    def __init__(self, patience_s: float = JOIN_S) -> None:
        """`patience_s`: how long a rank waits for those below."""
        self._patience_s = patience_s
        self._links: dict[_Key, StepLink] = {}
        self._changed = asyncio.Condition()

    async def serve(self, link: StepLink) -> None:
        """Let a connection wait, until it is taken or ends."""
        try:
            async with asyncio.timeout(_FIRST_S):
                (first, _), *more = await link.receive()
        except (TimeoutError, PotluckError):
            link.close()
            return
        if not isinstance(first, JoinRanks) or more:
            link.close("a rank says first which one it is")
            return
        key = link.home, NodeId(link.peer.node_id), first.epoch, first.rank
        async with self._changed:
            if key in self._links:
                self._links.pop(key).close()
            if len(self._links) >= _MOST:
                self._links.pop(next(iter(self._links))).close()
            self._links[key] = link
            self._changed.notify_all()
        await link.wait_closed()
        if self._links.get(key) is link:
            del self._links[key]

    async def add_below(self, links: Links, place: RankPlace, home: HomeId, epoch: int) -> Links:
        """These connections, and those of the ranks below, which are waited for.

        Raises:
            PeerTimeoutError: a rank did not connect in time.
        """
        sums = dict(links.sums)
        try:
            async with asyncio.timeout(self._patience_s), self._changed:
                for rank, hop in enumerate(place.hops[: place.rank]):
                    key = home, NodeId(hop.node_id), epoch, rank
                    await self._changed.wait_for(lambda key=key: key in self._links)
                    sums[rank] = self._links.pop(key)
        except BaseException as error:
            Links(sums=sums, steps=links.steps).close()
            if isinstance(error, TimeoutError):
                raise PeerTimeoutError(
                    "Another computer of the group did not connect within"
                    f" {self._patience_s:.0f} seconds."
                ) from None
            raise
        return Links(sums=sums, steps=links.steps)
