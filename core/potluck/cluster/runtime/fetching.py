"""Brings wheels into the store: from the home where it has them, else from the Internet, else by a computer that has it.

Where bytes come from decides nothing: each file has the hash that the lock names, or is deleted and taken elsewhere.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from potluck.cluster.runtime.sharing import Offer, Source, WheelClient
from potluck.errors import (
    DiskFullError,
    HubError,
    IntegrityError,
    PeerError,
    PotluckError,
    ProtocolError,
    StoreError,
)
from potluck.ids import Digest, NodeId
from potluck.runtime.download import Internet
from potluck.runtime.lock import Wheel
from potluck.runtime.stopping import StoppedError
from potluck.runtime.wheel import no_room
from potluck.store.chunks import ChunkStore

logger = logging.getLogger(__name__)

FOUND_S: Final = 5.0  # for a paired computer to be found, right after a start or the pairing
POLL_S: Final = 1.0  # between two questions how far another computer is
TOLD_S: Final = 0.2  # between two reports of a download
STUCK_S: Final = 180.0  # without a byte more there, until it is given up
_LOOK_S: Final = 0.1  # between two looks whether one was found
_PIECE: Final = 4 << 20


@dataclass(slots=True)
class Coming:
    """How far it is; read while it goes on."""

    changed: Callable[[], None] = lambda: None
    source: str = ""
    here: dict[Digest, int] = field(default_factory=dict[Digest, int])  # bytes of each file
    from_home: int = 0
    from_internet: int = 0

    def say(self, source: str) -> None:
        """Note who sends now."""
        self.source = source
        self.changed()


class WheelFetcher:
    """Brings wheels here.

    Args:
        store: takes them.
        client: takes them from other computers.
        sources: the paired computers that can be reached.
        paired: the paired computers, found or not.
        internet: fetches them from there.
        poll_s: seconds between two questions how far another computer is.
    """

    def __init__(
        self,
        store: ChunkStore,
        client: WheelClient,
        *,
        sources: Callable[[], Sequence[Source]],
        paired: Callable[[], Collection[NodeId]],
        internet: Internet,
        poll_s: float = POLL_S,
    ) -> None:
        self._store, self._client, self._sources = store, client, sources
        self._paired, self._internet = paired, internet
        self._until: dict[NodeId, float] = {}  # when a paired computer is waited for no more
        self._poll_s = poll_s

    async def obtain(
        self, wheels: Sequence[Wheel], coming: Coming, *, may_ask: bool = True
    ) -> None:
        """Bring all of these here.

        Args:
            wheels: which.
            coming: is told how far it is.
            may_ask: whether others are asked to fetch what nobody has; no for what others asked for.

        Raises:
            PotluckError: it does not go on; what is here is kept.
        """
        digests = [wheel.digest for wheel in wheels]
        self._store.inventory.pin(digests)
        try:
            lacking = await self._lacking(wheels, coming)
            await asyncio.to_thread(self._make_room, lacking)
            lacking = await self._from_home(lacking, coming)
            if not lacking:
                return
            try:
                await self._from_internet(lacking, coming)
            except (HubError, IntegrityError) as error:
                lacking = await self._lacking(lacking, coming)
                if not may_ask or not await self._by_others(lacking, coming):
                    raise _nowhere(error) from error
        finally:
            coming.say("")
            self._store.inventory.unpin(digests)

    async def _lacking(self, wheels: Sequence[Wheel], coming: Coming) -> list[Wheel]:
        sizes = [(wheel.digest, wheel.nbytes) for wheel in wheels]
        missing = {one.digest: one for one in await asyncio.to_thread(self._store.missing, sizes)}
        for wheel in wheels:
            one = missing.get(wheel.digest)
            coming.here[wheel.digest] = wheel.nbytes if one is None else one.offset
        coming.changed()
        return [wheel for wheel in wheels if wheel.digest in missing]

    def _make_room(self, lacking: Sequence[Wheel]) -> None:
        needed = sum(wheel.nbytes - self._store.offset(wheel.digest) for wheel in lacking)
        try:
            self._store.free_for(needed)
        except DiskFullError as error:
            raise no_room(needed, max(0, self._store.room())) from error

    # --- from the home

    async def _from_home(self, lacking: Sequence[Wheel], coming: Coming) -> list[Wheel]:
        """Take what computers of the home have. Returns what is lacking still."""
        sources = await self._found()
        offers = await asyncio.gather(*(self._offer(one, lacking) for one in sources))
        best = sorted(zip(sources, offers, strict=True), key=lambda pair: -len(pair[1].whole))
        for source, offer in best:
            wanted = [wheel for wheel in lacking if wheel.digest in offer.whole]
            if wanted:
                await self._take(source, wanted, coming)
                lacking = await self._lacking(lacking, coming)
        return list(lacking)

    async def _found(self) -> Sequence[Source]:
        """The sources. Who asks right after a start or the pairing would else fetch from the Internet what the home has.

        Each paired computer is waited for once: one that is not found by then is off, and holds up no later fetch.
        """
        now = asyncio.get_running_loop().time
        while True:
            sources = self._sources()
            begin, lacking = now(), set(self._paired()) - {one.node_id for one in sources}
            for each in lacking:
                self._until.setdefault(each, begin + FOUND_S)
            if all(self._until[each] <= begin for each in lacking):
                return sources
            await asyncio.sleep(_LOOK_S)

    async def _offer(
        self, source: Source, wheels: Sequence[Wheel], *, fetch: bool = False
    ) -> Offer:
        try:
            return await self._client.ask(source, wheels, fetch=fetch)
        except PotluckError as error:
            logger.info("no wheels from %s: %s", source.name, error)
            return Offer(frozenset(), 0, is_fetching=False, problem=error.message)

    async def _take(self, source: Source, wheels: Sequence[Wheel], coming: Coming) -> None:
        """Take files of one computer; one that breaks off or lies is left, and the next source is taken."""
        coming.say(source.name)
        before = sum(coming.here[wheel.digest] for wheel in wheels)
        total = sum(wheel.nbytes for wheel in wheels)
        came = 0

        def progress(sent: int) -> None:
            nonlocal came
            coming.from_home += sent - came
            came = sent
            _spread(coming, wheels, min(total, before + sent))

        try:
            await self._client.take(source, wheels, lambda told: progress(told.sent))
        except (PeerError, ProtocolError) as error:  # it is gone, or breaks the rules
            logger.info("wheels from %s: %s", source.name, error)
        except DiskFullError:
            raise
        except StoreError as error:  # altered twice: another source is taken
            logger.warning(
                "wheels from %s are not those that were asked for: %s", source.name, error
            )

    # --- from the Internet

    async def _from_internet(self, lacking: Sequence[Wheel], coming: Coming) -> None:
        loop, stopped = asyncio.get_running_loop(), threading.Event()

        told = 0.0

        def arrived(wheel: Wheel, here: int) -> None:
            nonlocal told
            if (now := time.monotonic()) - told < TOLD_S and here < wheel.nbytes:
                return
            told = now
            loop.call_soon_threadsafe(self._arrived, coming, wheel, here)

        for wheel in lacking:
            coming.say(self._internet.server(wheel))
            running = asyncio.create_task(
                asyncio.to_thread(self._internet.fetch, wheel, arrived, stopped)
            )
            try:
                coming.from_internet += await asyncio.shield(running)
            except asyncio.CancelledError:
                stopped.set()
                await asyncio.wait([running])
                if not running.cancelled() and isinstance(running.exception(), StoppedError):
                    logger.info("the download was stopped")
                raise
            coming.here[wheel.digest] = wheel.nbytes

    @staticmethod
    def _arrived(coming: Coming, wheel: Wheel, here: int) -> None:
        coming.here[wheel.digest] = max(here, coming.here.get(wheel.digest, 0))
        coming.changed()

    # --- by another computer

    async def _by_others(self, lacking: Sequence[Wheel], coming: Coming) -> bool:
        """Have computers of the home fetch what nobody has, one after the other, and take it. False: none can."""
        for source in self._sources():
            if await self._fetched_by(source, lacking, coming):
                await self._take(source, lacking, coming)
                lacking = await self._lacking(lacking, coming)
            if not lacking:
                return True
        return False

    async def _fetched_by(self, source: Source, lacking: Sequence[Wheel], coming: Coming) -> bool:
        """Whether a computer has all of it in the end; it is asked until it has, or does not get on."""
        now = asyncio.get_running_loop().time
        furthest, since = -1, now()
        while True:
            offer = await self._offer(source, lacking, fetch=True)
            if offer.whole.issuperset(wheel.digest for wheel in lacking):
                return True
            if not offer.is_fetching or now() - since > STUCK_S:
                logger.info("%s does not fetch wheels: %s", source.name, offer.problem)
                return False
            if offer.nbytes > furthest:
                furthest, since = offer.nbytes, now()
            coming.say(source.name)
            await asyncio.sleep(self._poll_s)


def copy_in(store: ChunkStore, wheels: Sequence[Wheel], paths: Mapping[Digest, Path]) -> None:
    """Copy files of the owner into the store, so that others can take them. Blocks."""
    for wheel in wheels:
        if not store.has(wheel.digest, wheel.nbytes):
            with paths[wheel.digest].open("rb") as file:
                at = 0
                while piece := file.read(_PIECE):
                    store.write(wheel.digest, at, wheel.nbytes, piece)
                    at += len(piece)


def _spread(coming: Coming, wheels: Sequence[Wheel], here: int) -> None:
    """Note that so many bytes of these files are here: they come in their order."""
    for wheel in wheels:
        coming.here[wheel.digest] = min(wheel.nbytes, here)
        here -= coming.here[wheel.digest]
    coming.changed()


def _nowhere(error: HubError | IntegrityError) -> HubError | IntegrityError:
    return type(error)(
        f"{error.message} No computer of your home that is on has it either: one with a connection to the Internet"
        " helps, if it is paired and runs Potluck."
    )
