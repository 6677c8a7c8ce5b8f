"""What a stage sends to others of its sessions' caches, a little at a time.

Used on the computing thread only. Rows go to stages that answer with what this one reads, and to those of the next plan, which
ask for them (`fetch_cache`). They show the plan's key: only the computers that the master has told it of get anything.
"""

import hmac
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from potluck.cluster.stage.scheduler import PeerLink
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.engine.caches.session_transfer import RowSender
from potluck.errors import InvalidStepError, NotAllowedError, PeerLostError, PotluckError
from potluck.ids import SessionId
from potluck.wire.cache_messages import (
    CacheGivenUp,
    CacheReceived,
    CacheRows,
    CacheSent,
    FetchCache,
)
from potluck.wire.messages import Message

logger = logging.getLogger(__name__)

UNWRITTEN = 32 << 20  # bytes that may be on their way to a computer: a chunk of the largest models
MOST_FETCHED = 32  # caches that a computer may be fetching at a time: one for each answer under way


@dataclass(slots=True, eq=False)
class _Outgoing:
    """What one stage is sent of a session."""

    session: str
    link: PeerLink
    layers: range
    rows: RowSender
    sent: int = 0  # bytes
    written: int = 0  # of these, as the other one has said


class Giving:
    """What is on its way to others; `epoch` is that of the plan in force here."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._outgoing: dict[tuple[str, PeerLink], _Outgoing] = {}

    def begin(
        self, transfer: str, session: str, link: PeerLink, layers: range, rows: RowSender
    ) -> None:
        """Begin to send rows of these layers."""
        outgoing = _Outgoing(session, link, layers, rows)
        self._outgoing[transfer, link] = outgoing
        self._send(transfer, outgoing)

    def give(self, link: PeerLink, message: FetchCache, left: Callable[[], LeftSessions]) -> None:
        """Send a stage of the next plan what is left of a session."""
        layers = range(*message.layers)
        self._outgoing.pop((message.transfer, link), None)  # of one name there is one
        try:
            if len(self._sent_to(link)) >= MOST_FETCHED:
                raise InvalidStepError("One computer fetches too many conversations at a time.")
            held = left()
            to = None if message.share is None else message.share.share
            given = partial(held.shares.given, to=to, had=message.had)
            rows = held.rows(SessionId(message.session), layers, message.end, given)
        except Exception as error:  # noqa: BLE001 - also torch's own
            self.refuse(link, message.transfer, why(error))
            return
        self.begin(message.transfer, message.session, link, layers, rows)

    def go_on(self, session: str) -> None:
        """Send what has been computed of a session since."""
        if not self._outgoing:  # nearly always
            return
        for (name, _), outgoing in list(self._outgoing.items()):
            if outgoing.session == session:
                self._send(name, outgoing)

    def drop(self, session: str) -> None:
        """Send no more of a session, which goes on in another way."""
        for (name, link), outgoing in list(self._outgoing.items()):
            if outgoing.session == session:
                del self._outgoing[name, link]
                self.refuse(link, name, "It ended.")

    def lost(self, link: PeerLink) -> None:
        """Give up what goes over a connection that has ended."""
        for name, other in list(self._outgoing):
            if other is link:
                del self._outgoing[name, other]

    def received(self, link: PeerLink, message: CacheReceived) -> None:
        """Go on with what the other side has written."""
        if (outgoing := self._outgoing.get((message.transfer, link))) is not None:
            outgoing.written = min(message.nbytes, outgoing.sent)
            self._send(message.transfer, outgoing)

    def given_up(self, link: PeerLink, transfer: str) -> None:
        """Send no more to who wants no more."""
        self._outgoing.pop((transfer, link), None)

    def end(self) -> None:
        """Give up all that is under way, and say so: what is sent is given back."""
        for name, link in self._outgoing:
            self.refuse(link, name, "It was given back here.")
        self._outgoing.clear()

    def refuse(self, link: PeerLink, transfer: str, told: str) -> None:
        """Say that nothing more comes of a transfer."""
        say(link, CacheGivenUp(epoch=self._epoch, transfer=transfer, message=told))

    def _sent_to(self, link: PeerLink) -> list[_Outgoing]:
        """What is sent to the computer at the other end, on all its connections."""
        peer = link.peer.node_id
        return [each for each in self._outgoing.values() if each.link.peer.node_id == peer]

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
                    part=piece.part,
                    lane=piece.lane,
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
            self.refuse(link, name, why(error))


def check_key(known: str | None, shown: str | None) -> None:
    """Check that who fetches caches was told of the plan whose they are.

    Raises:
        NotAllowedError: it was not.
    """
    if known is None or shown is None or not hmac.compare_digest(known, shown):
        raise NotAllowedError("Neither that plan nor the next one names this computer.")


def say(link: PeerLink, message: Message) -> None:
    """Send a message, unless the connection has ended: who waits for it hears of that."""
    with suppress(PeerLostError):
        link.send_nowait(message)


def why(error: Exception) -> str:
    """What another computer is told of an error; torch's own are not for it."""
    return error.message if isinstance(error, PotluckError) else type(error).__name__
