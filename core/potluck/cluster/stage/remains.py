"""What a stage leaves behind when its memory is wanted back: the caches of its sessions, for the stages of the next plan."""

from potluck.cluster.stage.giving import Giving, check_key
from potluck.cluster.stage.scheduler import PeerLink
from potluck.engine.caches.left_sessions import LeftSessions
from potluck.errors import StaleEpochError
from potluck.ids import HomeId
from potluck.wire.cache_messages import CacheGivenUp, CacheReceived, FetchCache
from potluck.wire.messages import Message

REMAINS_S = 15.0  # as long as conversations may take to move


class Remains:
    """Used on the computing thread only, as transfers are.

    Args:
        home: whose sessions these are.
        epoch: of their plan.
        key: of it; who fetches them has to show it.
        left: their caches.
        giving: what is on its way of them, which goes on.
    """

    def __init__(
        self, home: HomeId, epoch: int, key: str, left: LeftSessions, giving: Giving
    ) -> None:
        self.home, self.left = home, left
        self._epoch, self._key = epoch, key
        self._giving = giving

    def receive(self, link: PeerLink, message: Message) -> None:
        """Handle a message of a stage that fetches a cache."""
        match message:
            case FetchCache():
                self._giving.give(link, message, lambda: self._left_of(message))
            case CacheReceived():
                self._giving.received(link, message)
            case CacheGivenUp():
                self._giving.given_up(link, message.transfer)
            case _:
                pass

    def lost(self, link: PeerLink) -> None:
        """Send nothing more over a connection that has ended."""
        self._giving.lost(link)

    def end(self) -> None:
        """Give the memory back, and say so to who is still fetching."""
        self._giving.end()
        self.left.clear()

    def _left_of(self, message: FetchCache) -> LeftSessions:
        if message.epoch != self._epoch:
            raise StaleEpochError("Nothing is left of that plan here.")
        check_key(self._key, message.key)
        return self.left
