"""Connect the ranks of a group with each other: each dials the ranks above it, and waits for those below.

Ranks that are processes of one computer then agree how they sum. Rank 0 offers what its device can do, and memory to share;
if all others can do the same, or open it, that is used, and else their connections are, as between computers. What is
agreed on is the same on all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

from potluck.cluster.stage.ranks import Links
from potluck.engine.rank_sums.collective import (
    CollectiveExchange,
    Transport,
    end_communicator,
    new_communicator,
)
from potluck.engine.rank_sums.shared_memory import SharedMemory
from potluck.errors import InvalidStepError, PeerTimeoutError, PotluckError, RemoteProtocolError
from potluck.ids import HomeId, NodeId
from potluck.net.step_link import StepLink
from potluck.wire.messages import Hop, Message, Purpose, RankPlace
from potluck.wire.rank_messages import (
    AnswerSums,
    ChooseSums,
    JoinRanks,
    MemoryPlace,
    OfferSums,
)
from potluck.wire.shares import RankShare

logger = logging.getLogger(__name__)

JOIN_S = 45.0  # all ranks are loaded at the same time, and dial before they read weights
_FIRST_S = 10.0  # for the first message of a connection
COLLECT_S = 30.0  # that a device waits for the others in a sum; its own node ends a rank that hangs
_MOST = 32  # connections that wait for a load

Dial = Callable[[Hop, Purpose], Awaitable[StepLink]]
M = TypeVar("M", bound=Message)
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


def check_ranks(place: RankPlace | None, share: RankShare | None, own: NodeId) -> None:
    """Check that the group that a stage is to join is the one of which it has a share.

    Raises:
        InvalidStepError: it is not, or its rank is another computer's.
    """
    if place is None:
        return
    if share is None or (share.rank, len(share.shares)) != (place.rank, len(place.hops)):
        raise InvalidStepError("This stage has another share than its rank in the group says.")
    check_place(place, own)


def check_place(place: RankPlace, own: NodeId) -> None:
    """Check that a rank is on this computer: those whose place says so share memory with each other.

    Raises:
        InvalidStepError: it is not.
    """
    if place.rank >= len(place.hops) or place.hops[place.rank].node_id != own:
        raise InvalidStepError("The rank that this computer is to be is another computer's.")


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


async def meet(
    lobby: Lobby,
    links: Links | None,
    place: RankPlace | None,
    home: HomeId,
    epoch: int,
    transport: Transport | None = None,
) -> Links | None:
    """All connections of a rank, of which it has those above it, and how it sums. None: there is no group.

    Raises:
        PotluckError: as `Lobby.add_below` and `agree`. The connections are closed then.
    """
    if links is None or place is None:
        return None
    return await agree(await lobby.add_below(links, place, home, epoch), place, transport)


async def end_meeting(meeting: "asyncio.Task[Links | None]") -> None:
    """Close the connections that were to be made for a load that failed."""
    meeting.cancel()
    with suppress(asyncio.CancelledError, PotluckError):
        if (links := await meeting) is not None:
            links.close()


async def agree(
    links: Links,
    place: RankPlace,
    transport: Transport | None = None,
    patience_s: float = JOIN_S,
) -> Links:
    """These connections, and how the ranks sum if all are processes of one computer: on their devices, or in memory that they share.

    Args:
        links: with all other ranks.
        place: of this rank.
        transport: of this rank's device; None: it has none.
        patience_s: how long the others are waited for.

    Raises:
        PeerTimeoutError, PeerLostError: a rank does not say in time what it can, or is gone.
        RankLostError, EngineError: the devices do not meet, or do not sum.
        RemoteProtocolError: a rank says something else.
    """
    if len({hop.node_id for hop in place.hops}) > 1:
        return links
    try:
        async with asyncio.timeout(patience_s):
            agreed = await (_offer if place.rank == 0 else _answer)(links, place, transport)
    except BaseException as error:
        links.close()
        if isinstance(error, TimeoutError):
            raise PeerTimeoutError(
                "Another part of the group did not say within"
                f" {patience_s:.0f} seconds how it can sum with this one."
            ) from None
        raise
    how = "devices" if agreed.devices else "memory" if agreed.memory else "links"
    logger.info(
        "ranks of one computer sum rank=%d world=%d by=%s", place.rank, len(place.hops), how
    )
    return agreed


async def _offer(links: Links, place: RankPlace, transport: Transport | None) -> Links:
    """Rank 0: have the others say whether their devices can sum, and whether they can open this one's memory."""
    communicator = None if transport is None else _make_communicator()
    memory = _make_memory(len(place.hops))
    try:
        offer = OfferSums(memory=memory and memory.place, communicator=communicator)
        for link in links.sums.values():
            link.send_nowait(offer)
        answers = [await _next(link, AnswerSums) for link in links.sums.values()]
        by: Literal["links", "memory", "devices"] = "links"
        if communicator is not None and all(answer.can_collect for answer in answers):
            by = "devices"
        elif memory is not None and all(answer.can_share for answer in answers):
            by = "memory"
        for link in links.sums.values():
            link.send_nowait(ChooseSums(by=by))
        return await _chosen(links, place, by, memory, communicator, transport)
    finally:
        if memory is not None:
            memory.hide()
        if communicator is not None:
            end_communicator(communicator)


async def _answer(links: Links, place: RankPlace, transport: Transport | None) -> Links:
    """Another rank: take what rank 0 offers, if all can."""
    link = links.sums[0]
    offer = await _next(link, OfferSums)
    memory = None if offer.memory is None else _open_memory(offer.memory, len(place.hops))
    can_collect = transport is not None and offer.communicator is not None
    link.send_nowait(AnswerSums(can_share=memory is not None, can_collect=can_collect))
    choice = await _next(link, ChooseSums)
    return await _chosen(links, place, choice.by, memory, offer.communicator, transport)


async def _chosen(
    links: Links,
    place: RankPlace,
    by: Literal["links", "memory", "devices"],
    memory: SharedMemory | None,
    communicator: str | None,
    transport: Transport | None,
) -> Links:
    """The connections, with what rank 0 has chosen.

    Raises:
        RemoteProtocolError: this rank has said that it cannot do that: it would sum in another way than the others.
    """
    if by == "links":
        return links
    if by == "memory" and memory is not None:
        return replace(links, memory=memory)
    if by == "devices" and communicator is not None and transport is not None:
        make = partial(CollectiveExchange, communicator, place.rank, len(place.hops), transport)
        return replace(links, devices=await _meet_devices(partial(make, timeout_s=COLLECT_S)))
    raise RemoteProtocolError(
        f"{links.sums[0].peer.name} has chosen to sum by {by}, which this rank cannot do."
    )


async def _meet_devices(meet_others: Callable[[], CollectiveExchange]) -> CollectiveExchange:
    """Meet in a thread, which goes on if this is cancelled: then nobody else closes what comes of it."""
    meeting = asyncio.get_running_loop().run_in_executor(None, meet_others)
    try:
        return await asyncio.shield(meeting)
    except asyncio.CancelledError:
        meeting.add_done_callback(_abort)
        raise


def _abort(meeting: "asyncio.Future[CollectiveExchange]") -> None:
    if not meeting.cancelled() and meeting.exception() is None:
        meeting.result().abort()


async def _next(link: StepLink, kind: type[M]) -> M:
    """The next message of a rank, which has to be of this kind."""
    (message, _), *more = await link.receive()
    if not isinstance(message, kind) or more:
        link.close("Ranks first agree how they sum.")
        raise RemoteProtocolError(
            f"{link.peer.name} sent {type(message).__name__} where {kind.__name__} was due."
        )
    return message


def _make_communicator() -> str | None:
    """Where devices find each other; None: there is no room for it."""
    try:
        return new_communicator()
    except OSError as error:
        logger.warning("the devices of a group cannot meet: %s", error)
        return None


def _make_memory(world: int) -> SharedMemory | None:
    """Memory for a group; None: this process cannot make it, or has no kernels to sum in it."""
    try:
        from potluck.engine.rank_sums.shared_sums import shared_bytes

        return SharedMemory.create(shared_bytes(world))
    except (ImportError, OSError) as error:
        logger.warning("no memory is shared: %s", error)
        return None


def _open_memory(place: MemoryPlace, world: int) -> SharedMemory | None:
    try:
        from potluck.engine.rank_sums.shared_sums import shared_bytes

        return SharedMemory.open(place, shared_bytes(world))
    except (ImportError, OSError, PotluckError) as error:
        logger.warning("no memory is shared: %s", error)
        return None
