"""The caches that a stage sends to others as it reads a prompt, and those that others send to it.

Used on the computing thread only. A transfer ends when all of it is taken, when one side gives it up, when its
session is opened anew, trimmed or closed, or with a connection. A session never goes on with a part of it. Who sends
rows has to know the transfer's name, which the driver draws and tells the stages of its plan.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from potluck.cluster.stage.scheduler import PeerLink
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.session_transfer import RowReceiver, RowSender
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError, PeerLostError, PotluckError, StaleEpochError
from potluck.ids import SessionId
from potluck.net.step_link import StepLink
from potluck.wire.activation_messages import Result
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    ExpectCache,
    FetchCache,
    SendCache,
    TakeCache,
)
from potluck.wire.messages import Message

logger = logging.getLogger(__name__)

UNWRITTEN = 32 << 20  # bytes that may be on their way to a computer: a chunk of the largest models
MOST_FETCHED = 32  # caches that a computer may be fetching at a time: one for each answer under way


class CacheTarget(NamedTuple):
    """A stage to which caches are sent, or that sends them, and the layers that both have."""

    link: StepLink
    layers: range


@dataclass(slots=True, eq=False)
class StageBefore:
    """What a stage takes conversations over from.

    Attributes:
        epoch: of the plan before.
        left: what this process has of it; None: nothing.
        sources: stages of it in other processes.
    """

    epoch: int
    left: LeftSessions | None
    sources: Sequence[CacheTarget] = ()

    def covers(self, layers: Sequence[int]) -> bool:
        """Whether each of these layers is somewhere."""
        own = () if self.left is None else self.left.layers
        return all(n in own or any(n in each.layers for each in self.sources) for n in layers)

    def close(self) -> None:
        """Give up what was not taken over."""
        for source in self.sources:
            source.link.close()
        self.left, self.sources = None, ()


@dataclass(slots=True, eq=False)
class _Outgoing:
    """What one stage is sent of a session."""

    session: str
    link: PeerLink
    layers: range
    rows: RowSender
    sent: int = 0  # bytes
    written: int = 0  # of these, as the other one has said


@dataclass(slots=True, eq=False)
class _Incoming:
    """What is sent to this stage of a session."""

    name: str
    session: str
    rows: RowReceiver
    missing: set[int]  # layers of which not everything was sent
    nbytes: dict[PeerLink, int] = field(default_factory=dict[PeerLink, int])  # that were written
    taker: TakeCache | None = None  # waits for the rest


class Transfers:
    """The transfers of the stage in force.

    Args:
        stage: whose sessions.
        epoch: of the plan.
        targets: stages to which the caches go that this one is asked to send.
        taken: called with a `take_cache` that has its answer: its position is where the session goes on.
        before: the plan whose conversations the stage takes over; None: there is none.
    """

    def __init__(
        self,
        stage: Stage,
        epoch: int,
        targets: Sequence[CacheTarget],
        taken: Callable[[TakeCache], None],
        before: StageBefore | None = None,
    ) -> None:
        self._stage, self._epoch = stage, epoch
        self._targets, self._taken, self._before = targets, taken, before
        self._incoming: dict[str, _Incoming] = {}
        self._outgoing: dict[tuple[str, PeerLink], _Outgoing] = {}

    # --- from the driver, along the chain

    def expect(self, message: ExpectCache) -> Result:
        """Make room for what others will send, and get it if stages of the plan before have it.

        Raises:
            PotluckError: there is no room, the session has other tokens, or nobody has the cache.
        """
        self.drop(message.session)
        before = None if message.before is None else self._stage_before(message.before)
        session = SessionId(message.session)
        rows = self._stage.expect_rows(
            session,
            message.position,
            message.end,
            epoch=message.epoch,
            evicts=before is None,  # one that was taken over is not lost to another one
        )
        layers = set(self._stage.weights.layers)
        transfer = _Incoming(message.transfer, message.session, rows, layers)
        self._incoming[message.transfer] = transfer
        if before is not None:
            self._fetch(transfer, before)
        return Result(
            epoch=message.epoch,
            session=message.session,
            step=message.step,
            position=message.position,
        )

    def _stage_before(self, epoch: int) -> StageBefore:
        before = self._before
        if before is None or before.epoch != epoch or not before.covers(self._stage.weights.layers):
            raise InvalidStepError("What this stage had of the plan before cannot be had any more.")
        return before

    def _fetch(self, transfer: _Incoming, before: StageBefore) -> None:
        """Copy what this process has of a cache, and ask other stages for the rest."""
        session, end = SessionId(transfer.session), transfer.rows.end
        if (left := before.left) is not None:
            own = sorted(transfer.missing.intersection(left.layers))
            try:
                if own:
                    rows = left.rows(session, range(own[0], own[-1] + 1), end)
                    while (piece := rows.next()) is not None:
                        transfer.rows.write(piece.layer, piece.first, piece.tensor, piece.data)
                if len(own) == len(left.layers):  # no other stage wants any of it
                    left.drop(session)
            except Exception as error:  # noqa: BLE001 - also torch's own
                self._break(transfer, _why(error))
                return
            transfer.missing.difference_update(own)
        for link, layers in before.sources:
            transfer.nbytes[link] = 0  # its end is the end of this transfer
            fetch = FetchCache(
                epoch=before.epoch,
                session=transfer.session,
                transfer=transfer.name,
                layers=(layers.start, layers.stop),
                end=end,
            )
            self._say(link, fetch)

    def take(self, message: TakeCache) -> None:
        """Answer when everything is here, or if it will not be."""
        transfer = self._incoming.get(message.transfer)
        if transfer is not None and message.position < transfer.rows.end:
            self._break(transfer, "An earlier stage did not get all of it.")
            transfer = None
        if transfer is None or transfer.session != message.session:
            here = self._stage.position(SessionId(message.session))
            self._taken(msgspec.structs.replace(message, position=min(here, message.position)))
            return
        transfer.taker = message
        self._answer_whole(transfer)

    def send(self, message: SendCache) -> None:
        """Begin to send a session's cache to the stages that answer."""
        for target in self._targets:
            rows = self._stage.send_rows(
                SessionId(message.session),
                target.layers,
                message.position,
                message.end,
                epoch=message.epoch,
            )
            outgoing = _Outgoing(message.session, target.link, target.layers, rows)
            self._outgoing[message.transfer, target.link] = outgoing
        self.go_on(message.session)

    def go_on(self, session: str) -> None:
        """Send what has been computed of a session since."""
        if not self._outgoing:  # nearly always
            return
        for (name, _), outgoing in list(self._outgoing.items()):
            if outgoing.session == session:
                self._send(name, outgoing)

    def drop(self, session: str) -> None:
        """End the transfers of a session, which goes on in another way."""
        for transfer in [one for one in self._incoming.values() if one.session == session]:
            transfer.taker = None  # its driver has given up
            self._break(transfer, "The conversation goes on without it.")
        for (name, link), outgoing in list(self._outgoing.items()):
            if outgoing.session == session:
                del self._outgoing[name, link]
                self._say(link, CacheGivenUp(epoch=self._epoch, transfer=name, message="It ended."))

    def forget_before(self) -> None:
        """Give back what was not taken over from the plan before."""
        if (before := self._before) is not None:
            if before.left is not None:
                before.left.clear()
            before.close()
            self._before = None

    # --- from other stages

    def receive(self, link: PeerLink, message: Message, payload: memoryview) -> None:
        """Handle a message of a stage at the other end of a transfer."""
        match message:
            case FetchCache():
                self._give(link, message)
            case CacheRows():
                self._write(link, message, payload)
            case CacheSent():
                if (transfer := self._incoming.get(message.transfer)) is not None:
                    span = range(*message.layers)  # of any length: it is what a peer says
                    transfer.missing = {n for n in transfer.missing if n not in span}
                    self._answer_whole(transfer)
            case CacheReceived():
                key = message.transfer, link
                if (outgoing := self._outgoing.get(key)) is not None:
                    outgoing.written = min(message.nbytes, outgoing.sent)
                    self._send(message.transfer, outgoing)
            case CacheGivenUp():
                logger.info("a transfer was given up by %s: %s", link.peer.name, message.message)
                self._outgoing.pop((message.transfer, link), None)
                if (transfer := self._incoming.get(message.transfer)) is not None:
                    transfer.nbytes.pop(link, None)  # who has said so need not be told
                    self._break(transfer, message.message)
            case _:
                pass

    def lost(self, link: PeerLink) -> None:
        """Give up what can no longer come, or go, over a connection that has ended."""
        for name, other in list(self._outgoing):
            if other is link:
                del self._outgoing[name, other]
        for transfer in list(self._incoming.values()):
            if transfer.missing and link in transfer.nbytes:
                self._break(transfer, f"The connection with {link.peer.name} has ended.")

    def _give(self, link: PeerLink, message: FetchCache) -> None:
        """Send a stage of the next plan what is here of a session."""
        layers = range(*message.layers)
        self._outgoing.pop((message.transfer, link), None)  # of one name there is one
        try:
            if len(self._sent_to(link)) >= MOST_FETCHED:
                raise InvalidStepError("One computer fetches too many conversations at a time.")
            rows = self._left_of(message.epoch).rows(
                SessionId(message.session), layers, message.end
            )
        except Exception as error:  # noqa: BLE001 - also torch's own
            told = _why(error)
            given_up = CacheGivenUp(epoch=self._epoch, transfer=message.transfer, message=told)
            self._say(link, given_up)
            return
        outgoing = _Outgoing(message.session, link, layers, rows)
        self._outgoing[message.transfer, link] = outgoing
        self._send(message.transfer, outgoing)

    def _sent_to(self, link: PeerLink) -> list[_Outgoing]:
        """What is sent to the computer at the other end, on all its connections."""
        peer = link.peer.node_id
        return [each for each in self._outgoing.values() if each.link.peer.node_id == peer]

    def _left_of(self, epoch: int) -> LeftSessions:
        """What is here of a plan: the one in force, or the one before."""
        if epoch == self._epoch:
            return self._stage.left(is_in_force=True)
        if self._before is None or self._before.epoch != epoch or self._before.left is None:
            raise StaleEpochError("Nothing is left of that plan here.")
        return self._before.left

    def _write(self, link: PeerLink, message: CacheRows, payload: memoryview) -> None:
        transfer = self._incoming.get(message.transfer)
        if transfer is None:
            told = "Nobody waits for it here."
            self._say(
                link, CacheGivenUp(epoch=self._epoch, transfer=message.transfer, message=told)
            )
            return
        nbytes = transfer.nbytes[link] = transfer.nbytes.get(link, 0) + payload.nbytes
        try:
            transfer.rows.write(message.layer, message.first, message.tensor, payload)
        except Exception as error:  # noqa: BLE001 - also torch's own
            self._break(transfer, _why(error))
            return
        self._say(link, CacheReceived(epoch=self._epoch, transfer=transfer.name, nbytes=nbytes))

    def _answer_whole(self, transfer: _Incoming) -> None:
        """Go on with a transfer of which everything is here."""
        if transfer.missing or transfer.taker is None:
            return
        try:
            transfer.rows.finish()
        except Exception as error:  # noqa: BLE001 - also torch's own
            self._break(transfer, _why(error))
            return
        del self._incoming[transfer.name]
        self._taken(transfer.taker)

    def _break(self, transfer: _Incoming, why: str) -> None:
        """Drop all of a transfer. The session has the tokens that it had before."""
        logger.warning("a transfer is given up: %s", why)
        self._incoming.pop(transfer.name, None)
        for link in transfer.nbytes:
            self._say(link, CacheGivenUp(epoch=self._epoch, transfer=transfer.name, message=why))
        if (taker := transfer.taker) is not None:
            here = self._stage.position(SessionId(transfer.session))
            self._taken(msgspec.structs.replace(taker, position=min(here, taker.position)))

    def _send(self, name: str, outgoing: _Outgoing) -> None:
        """Send rows, as many as the other stage takes now."""
        link, layers = outgoing.link, outgoing.layers
        try:
            # Each gets a part of what may be on its way: it goes on by what is said of itself alone.
            most = UNWRITTEN / max(1, len(self._sent_to(link)))
            while outgoing.sent - outgoing.written < most:
                if (piece := outgoing.rows.next()) is None:
                    break
                rows = CacheRows(
                    epoch=self._epoch,
                    transfer=name,
                    layer=piece.layer,
                    first=piece.first,
                    tensor=piece.tensor,
                )
                outgoing.sent += piece.data.nbytes
                link.send_nowait(rows, piece.data)
            if outgoing.rows.is_done:
                span = layers.start, layers.stop
                link.send_nowait(CacheSent(epoch=self._epoch, transfer=name, layers=span))
                del self._outgoing[name, link]
        except Exception as error:  # noqa: BLE001 - also torch's own; the prompt itself goes on
            logger.warning("a cache cannot be sent to %s: %s", link.peer.name, error)
            self._outgoing.pop((name, link), None)
            why = _why(error)
            self._say(link, CacheGivenUp(epoch=self._epoch, transfer=name, message=why))

    def _say(self, link: PeerLink, message: Message) -> None:
        with suppress(PeerLostError):  # who waits for it hears of the connection's end
            link.send_nowait(message)


def _why(error: Exception) -> str:
    return error.message if isinstance(error, PotluckError) else type(error).__name__
