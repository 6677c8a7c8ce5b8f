"""The transfers of a stage: caches that others send to it, and those that it sends (`giving.py`).

Used on the computing thread only. A transfer ends when all of it is taken, when one side gives it up, when its
session is opened anew, trimmed or closed, or with a connection. A session never goes on with a part of it. Who sends
rows has to know the transfer's name, which the driver draws and tells the stages of its plan.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from potluck.cluster.stage.giving import Giving, check_key, say, why
from potluck.cluster.stage.scheduler import PeerLink
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.session_transfer import Piece, RowReceiver
from potluck.engine.stage import Stage
from potluck.errors import InvalidStepError, StaleEpochError
from potluck.ids import SessionId
from potluck.model.cache_shares import CacheShares, Lanes, lanes_without
from potluck.model.shares import Share
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
from potluck.wire.shares import RankShare

logger = logging.getLogger(__name__)


class CacheTarget(NamedTuple):
    """A stage to which caches are sent, or that sends them."""

    link: StepLink
    layers: range  # that both have
    share: Share | None = None  # of each layer; None: the stage has all of it


@dataclass(slots=True, eq=False)
class StageBefore:
    """What a stage takes conversations over from.

    Attributes:
        epoch: of the plan before.
        key: of it, which its stages want to see; None: they give nothing.
        left: what this process has of it; None: nothing.
        sources: stages of it in other processes.
    """

    epoch: int
    left: LeftSessions | None
    sources: Sequence[CacheTarget] = ()
    key: str | None = None

    def had(self, source: CacheTarget) -> int | None:
        """The rank of a source's group that this process was itself; None: it was none of it."""
        own = None if self.left is None else self.left.shares.share
        if self.left is None or own is None or source.share is None:
            return None
        is_same = own.parts == source.share.parts and source.layers.start in self.left.layers
        return own.rank if is_same else None

    def covers(self, layers: Sequence[int], shares: CacheShares) -> bool:
        """Whether all that a stage caches of these layers is somewhere."""
        return not any(any(self._lacking(layer, shares)) for layer in layers)

    def _lacking(self, layer: int, shares: CacheShares) -> Lanes:
        lanes = shares.held(layer)
        if self.left is not None and layer in self.left.layers:
            lanes = lanes_without(lanes, self.left.shares.held(layer))
        for source in self.sources:
            if layer in source.layers:
                lanes = lanes_without(lanes, self._given(source, layer, shares))
        return lanes

    def gives(self, source: CacheTarget, layers: Sequence[int], shares: CacheShares) -> bool:
        """Whether a source has something of these layers that no other one sends to this stage."""
        both = (layer for layer in layers if layer in source.layers)
        return any(any(self._given(source, layer, shares)) for layer in both)

    def _given(self, source: CacheTarget, layer: int, shares: CacheShares) -> Lanes:
        there = replace(shares, share=source.share)
        return there.given(layer, shares.share, self.had(source))

    def close(self) -> None:
        """Give up what was not taken over."""
        for source in self.sources:
            source.link.close()
        self.left, self.sources = None, ()


@dataclass(slots=True, eq=False)
class _Incoming:
    """What is sent to this stage of a session."""

    name: str
    session: str
    rows: RowReceiver
    sending: set[PeerLink] | None = None  # who was asked and has not sent all; None: nobody was
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
        key: of the plan: who knows it may fetch caches; None: nobody may.
    """

    def __init__(
        self,
        stage: Stage,
        epoch: int,
        targets: Sequence[CacheTarget],
        taken: Callable[[TakeCache], None],
        before: StageBefore | None = None,
        key: str | None = None,
    ) -> None:
        self._stage, self._epoch = stage, epoch
        self._targets, self._taken, self._before = targets, taken, before
        self._incoming: dict[str, _Incoming] = {}
        self._giving, self._key = Giving(epoch), key

    @property
    def giving(self) -> Giving:
        """What is on its way from here: it may go on, or is given up, when the stage is out of force."""
        return self._giving

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
        transfer = _Incoming(message.transfer, message.session, rows)
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
        layers, shares = self._stage.weights.layers, self._stage.shares
        if before is None or before.epoch != epoch or not before.covers(layers, shares):
            raise InvalidStepError("What this stage had of the plan before cannot be had any more.")
        return before

    def _fetch(self, transfer: _Incoming, before: StageBefore) -> None:
        """Copy what this process has of a cache, and ask other stages for the rest."""
        layers, shares = self._stage.weights.layers, self._stage.shares
        share = shares.share
        try:
            if before.left is not None:
                self._copy(transfer, before.left)
        except Exception as error:  # noqa: BLE001 - also torch's own
            self._break(transfer, why(error))
            return
        sources = [source for source in before.sources if before.gives(source, layers, shares)]
        transfer.sending = {source.link for source in sources}
        for source in sources:
            transfer.nbytes[source.link] = 0  # its end is the end of this transfer
            fetch = FetchCache(
                epoch=before.epoch,
                session=transfer.session,
                transfer=transfer.name,
                layers=(source.layers.start, source.layers.stop),
                end=transfer.rows.end,
                key=before.key,
                share=None if share is None else RankShare(rank=share.rank, shares=share.parts),
                had=before.had(source),
            )
            say(source.link, fetch)

    def _copy(self, transfer: _Incoming, left: LeftSessions) -> None:
        """Copy what this process has of a cache."""
        session, share = SessionId(transfer.session), self._stage.shares.share
        own = sorted(set(self._stage.weights.layers).intersection(left.layers))
        if own:
            common = partial(left.shares.common, to=share)
            rows = left.rows(session, range(own[0], own[-1] + 1), transfer.rows.end, common)
            while (piece := rows.next()) is not None:
                transfer.rows.write(piece)
        others = () if share is None else share.others
        is_wanted = any(any(left.shares.given(n, rank)) for n in left.layers for rank in others)
        if len(own) == len(left.layers) and not is_wanted:  # no other stage wants any of it
            left.drop(session)

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
                to=target.share,
            )
            self._giving.begin(message.transfer, message.session, target.link, target.layers, rows)

    def go_on(self, session: str) -> None:
        """Send what has been computed of a session since."""
        self._giving.go_on(session)

    def drop(self, session: str) -> None:
        """End the transfers of a session, which goes on in another way."""
        for transfer in [one for one in self._incoming.values() if one.session == session]:
            transfer.taker = None  # its driver has given up
            self._break(transfer, "The conversation goes on without it.")
        self._giving.drop(session)

    def take_over_from(self, before: StageBefore) -> None:
        """Take sessions over from these stages from now on, in place of those before."""
        self.forget_before()
        self._before = before

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
                self._giving.give(link, message, lambda: self._left_of(message))
            case CacheRows():
                self._write(link, message, payload)
            case CacheSent():
                if (transfer := self._incoming.get(message.transfer)) is not None:
                    self._sent(link, transfer)
            case CacheReceived():
                self._giving.received(link, message)
            case CacheGivenUp():
                logger.info("a transfer was given up by %s: %s", link.peer.name, message.message)
                self._giving.given_up(link, message.transfer)
                if (transfer := self._incoming.get(message.transfer)) is not None:
                    transfer.nbytes.pop(link, None)  # who has said so need not be told
                    self._break(transfer, message.message)
            case _:
                pass

    def lost(self, link: PeerLink) -> None:
        """Give up what can no longer come, or go, over a connection that has ended."""
        self._giving.lost(link)
        for transfer in list(self._incoming.values()):
            if not transfer.rows.is_whole and link in transfer.nbytes:
                self._break(transfer, f"The connection with {link.peer.name} has ended.")

    def _left_of(self, message: FetchCache) -> LeftSessions:
        """What is here of a plan: the one in force, or the one before."""
        if message.epoch == self._epoch:
            check_key(self._key, message.key)
            return self._stage.left(is_in_force=True)
        before = self._before
        if before is None or before.epoch != message.epoch or before.left is None:
            raise StaleEpochError("Nothing is left of that plan here.")
        check_key(before.key, message.key)
        return before.left

    def _write(self, link: PeerLink, message: CacheRows, payload: memoryview) -> None:
        transfer = self._incoming.get(message.transfer)
        if transfer is None:
            self._giving.refuse(link, message.transfer, "Nobody waits for it here.")
            return
        nbytes = transfer.nbytes[link] = transfer.nbytes.get(link, 0) + payload.nbytes
        try:
            place = message.layer, message.part, message.lane, message.first
            transfer.rows.write(Piece(*place, message.tensor, payload))
        except Exception as error:  # noqa: BLE001 - also torch's own
            self._break(transfer, why(error))
            return
        say(link, CacheReceived(epoch=self._epoch, transfer=transfer.name, nbytes=nbytes))
        self._answer_whole(transfer)

    def _sent(self, link: PeerLink, transfer: _Incoming) -> None:
        """Give a transfer up if all who were asked have sent what they have, and that is not all."""
        if transfer.sending is not None:
            transfer.sending.discard(link)
            if not transfer.sending and not transfer.rows.is_whole:
                self._break(transfer, "Not all of the conversation came.")

    def _answer_whole(self, transfer: _Incoming) -> None:
        """Go on with a transfer of which everything is here."""
        if transfer.taker is None or not transfer.rows.is_whole:
            return
        try:
            transfer.rows.finish()
        except Exception as error:  # noqa: BLE001 - also torch's own
            self._break(transfer, why(error))
            return
        del self._incoming[transfer.name]
        self._taken(transfer.taker)

    def _break(self, transfer: _Incoming, told: str) -> None:
        """Drop all of a transfer. The session has the tokens that it had before."""
        logger.warning("a transfer is given up: %s", told)
        self._incoming.pop(transfer.name, None)
        for link in transfer.nbytes:
            self._giving.refuse(link, transfer.name, told)
        if (taker := transfer.taker) is not None:
            here = self._stage.position(SessionId(transfer.session))
            self._taken(msgspec.structs.replace(taker, position=min(here, taker.position)))
