"""Both ends of a `wheels` connection: files of the engine travel between paired computers.

Only members of a home come so far. Files are asked for and sent by their SHA-256; one is given out only if a lock of
this computer's own release lists it, or the signed list of a newer one, so that nobody can read anything else, or have
anything else fetched.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from potluck import __version__
from potluck.errors import IntegrityError, NotAllowedError, PeerError, PotluckError
from potluck.ids import Digest, HomeId, NodeId, short
from potluck.net.identity import Identity
from potluck.net.link import Link, error_message
from potluck.net.transport import dial
from potluck.runtime.lock import Wheel
from potluck.store.chunks import ChunkStore
from potluck.store.fetch import receive_tensors, send_tensors
from potluck.store.progress import TransferProgress
from potluck.store.source import TensorSource
from potluck.store.throttle import Throttle
from potluck.wire.messages import Address, Message, NeedTensor, NodeInfo
from potluck.wire.wheel_messages import (
    MAX_ASKED,
    ReleaseHeard,
    SendWheels,
    TellRelease,
    WantWheels,
    WheelHere,
    WheelsHere,
)

logger = logging.getLogger(__name__)

DIAL_S: Final = 5.0
ANSWER_S: Final = 15.0  # the disk of the other one may sleep
IDLE_S: Final = 120.0  # without a request, until a connection is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A paired computer that may have wheels."""

    name: str
    home: HomeId
    node_id: NodeId
    addresses: Sequence[Address]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a source has of the files that it was asked for."""

    whole: frozenset[Digest]
    nbytes: int  # of all that is there, parts included
    is_fetching: bool
    problem: str


class WheelServer:
    """Serves the connections of computers that take wheels from this one.

    Args:
        store: where wheels are.
        listed: those that the locks of this release name, and packages of a newer one.
        fetch: begins to fetch those that are not here; returns why it does not, or an empty text.
        heard: a main computer tells of a newer release; returns what is done about it.
        throttle: limits how fast they are sent.
    """

    def __init__(
        self,
        store: ChunkStore,
        *,
        listed: Callable[[], Mapping[Digest, Wheel]],
        fetch: Callable[[Sequence[Wheel]], str],
        heard: Callable[[bytes], str] = lambda _: "",
        throttle: Throttle | None = None,
    ) -> None:
        self._store, self._listed, self._fetch, self._heard = store, listed, fetch, heard
        self._throttle = throttle

    async def serve(self, link: Link) -> None:
        """Serve one connection until it ends."""
        try:
            while True:
                async with asyncio.timeout(IDLE_S):
                    message, _ = await link.receive()
                await self._answer(link, message)
        except (PeerError, TimeoutError) as error:
            logger.debug("wheels link ended peer=%s: %s", link.peer.name, error)
        except PotluckError as error:
            logger.info("wheels link failed peer=%s: %s", link.peer.name, error)
            with suppress(PeerError):
                await link.send(error_message(error))

    async def _answer(self, link: Link, message: Message) -> None:
        match message:
            case WantWheels():
                await link.send(await self._offer(message))
            case SendWheels(wheels=wheels):
                sources = await asyncio.to_thread(self._sources, wheels)
                await self._send(link, wheels, sources)
            case TellRelease(envelope=envelope):
                if link.peer_role != "master":
                    raise NotAllowedError("Only a home's main computer tells of a newer Potluck.")
                said = self._heard(envelope.encode())
                await link.send(ReleaseHeard(re=message.id, version=__version__, message=said))
            case _:
                raise NotAllowedError("On this connection, files of the engine are asked for.")

    async def _send(
        self, link: Link, wheels: Sequence[NeedTensor], sources: Mapping[Digest, TensorSource]
    ) -> None:
        try:
            sent = await send_tensors(link, wheels, sources, throttle=self._throttle)
        except IntegrityError:  # the disk has altered one
            await asyncio.to_thread(self._store.verify, tuple(sources))
            raise
        logger.info("wheels sent peer=%s bytes=%d", link.peer.name, sent)

    async def _offer(self, message: WantWheels) -> WheelsHere:
        listed = self._listed()
        asked = [listed[d] for text in message.digests if (d := Digest(text)) in listed]
        problem = ""
        lacking = [wheel for wheel in asked if not self._store.has(wheel.digest, wheel.nbytes)]
        if message.fetch and lacking:
            problem = self._fetch(lacking)
        return WheelsHere(
            re=message.id,
            wheels=tuple(await asyncio.to_thread(self._here, asked)),
            fetching=bool(message.fetch and lacking and not problem),
            message=problem,
        )

    def _here(self, wheels: Sequence[Wheel]) -> list[WheelHere]:
        here: list[WheelHere] = []
        for wheel in wheels:
            whole = self._store.has(wheel.digest, wheel.nbytes)
            nbytes = wheel.nbytes if whole else self._store.offset(wheel.digest)
            if nbytes:
                here.append(WheelHere(digest=wheel.digest, nbytes=nbytes, whole=whole))
        return here

    def _sources(self, wheels: Sequence[NeedTensor]) -> dict[Digest, TensorSource]:
        """Where these files are. One that was deleted since it was offered is not there: `send_tensors` says so."""
        listed, sources = self._listed(), dict[Digest, TensorSource]()
        for digest in (Digest(wheel.digest) for wheel in wheels):
            wheel = listed.get(digest)
            if wheel is not None and self._store.has(digest, wheel.nbytes):
                path = self._store.path(digest)
                sources[digest] = TensorSource(path=path, offset=0, nbytes=wheel.nbytes)
        return sources


class WheelClient:
    """Takes wheels from paired computers.

    Args:
        identity: of this node.
        me: describes this node.
        store: takes them.
    """

    def __init__(
        self, identity: Identity, *, me: Callable[[], NodeInfo], store: ChunkStore
    ) -> None:
        self._identity, self._me, self._store = identity, me, store

    async def ask(self, source: Source, wheels: Sequence[Wheel], *, fetch: bool = False) -> Offer:
        """What a computer has of these files, and whether it fetches the others.

        Raises:
            PeerError: it does not answer, or knows nothing of wheels.
        """
        link = await self._dial(source)
        try:
            return await self._ask(link, wheels, fetch=fetch)
        finally:
            link.close()

    async def take(
        self, source: Source, wheels: Sequence[Wheel], progress: Callable[[TransferProgress], None]
    ) -> int:
        """Bring those of these files that a computer has into the store. Returns the bytes that came.

        Raises:
            PeerError: it is gone or breaks the rules; what came is kept.
            StoreError: the disk cannot take them; IntegrityError: it sends other bytes than listed.
        """
        link = await self._dial(source)
        try:
            offer = await self._ask(link, wheels)
            taken = {w.digest: w.nbytes for w in wheels if w.digest in offer.whole}
            missing = await asyncio.to_thread(self._store.missing, taken.items())
            if not missing:
                return 0
            needs = tuple(NeedTensor(digest=one.digest, offset=one.offset) for one in missing)
            await link.send(SendWheels(wheels=needs))
            return await receive_tensors(link, self._store, taken, progress=progress)
        finally:
            link.close()

    async def tell(self, source: Source, envelope: bytes) -> ReleaseHeard:
        """Tell a computer of the own home of a newer release.

        Raises:
            PeerError: it does not answer, or is too old to know what that is.
        """
        link = await self._dial(source)
        try:
            answer = await link.request(TellRelease(envelope=envelope.decode()), timeout_s=ANSWER_S)
        finally:
            link.close()
        if not isinstance(answer, ReleaseHeard):
            raise PeerError(f"{link.peer.name} does not say which version it has.")
        return answer

    async def _dial(self, source: Source) -> Link:
        return await dial(
            source.addresses,
            self._identity,
            home=source.home,
            peer=source.node_id,
            purpose="wheels",
            me=self._me(),
            timeout_s=DIAL_S,
        )

    async def _ask(self, link: Link, wheels: Sequence[Wheel], *, fetch: bool = False) -> Offer:
        digests = tuple(wheel.digest for wheel in wheels)[:MAX_ASKED]
        answer = await link.request(WantWheels(digests=digests, fetch=fetch), timeout_s=ANSWER_S)
        if not isinstance(answer, WheelsHere):
            raise PeerError(f"{link.peer.name} does not say which files of the engine it has.")
        asked = {wheel.digest: wheel.nbytes for wheel in wheels}
        here = [one for one in answer.wheels if asked.get(Digest(one.digest)) is not None]
        whole = {Digest(w.digest) for w in here if w.whole and w.nbytes == asked[Digest(w.digest)]}
        nbytes = sum(min(one.nbytes, asked[Digest(one.digest)]) for one in here)
        logger.debug("wheels peer=%s whole=%s", link.peer.name, [short(d) for d in whole])
        return Offer(frozenset(whole), nbytes, answer.fetching, answer.message)
