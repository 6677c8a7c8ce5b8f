"""What both kinds of links, `Link` and `StepLink`, know of their peer."""

from collections.abc import Collection, Iterable, Iterator

from potluck.errors import PeerLostError, PotluckError, RemoteProtocolError
from potluck.ids import HomeId, Role
from potluck.net.identity import Identity, PeerIdentity
from potluck.net.interfaces import Interface, is_avoided
from potluck.net.limits import LinkLimits
from potluck.wire.connection import Connection
from potluck.wire.messages import Address, NodeInfo, Purpose


class PeerLink:
    """A connection with a member of a home.

    Attributes:
        home: the home that both belong to.
        peer_role: the peer's role in the home, from its certificate.
        remote: the address that the peer has here.
    """

    def __init__(
        self,
        remote: Address,
        connection: Connection,
        identity: Identity,
        peer: PeerIdentity,
        limits: LinkLimits,
    ) -> None:
        self.home: HomeId = peer.home
        self.peer_role: Role = peer.role
        self.remote = remote
        self._connection = connection
        self._identity = identity
        self._peer = peer
        self._limits = limits
        self._error: PotluckError | None = None  # why the connection ended
        self._unread_answers = 0

    @property
    def peer(self) -> NodeInfo:
        """The peer's own description; its `node_id` is the one of its certificate."""
        assert self._connection.peer is not None  # callers get a link only once it is open
        return self._connection.peer

    @property
    def purpose(self) -> Purpose:
        assert self._connection.purpose is not None
        return self._connection.purpose

    @property
    def version(self) -> int:
        """Of the protocol: the highest that both speak."""
        assert self._connection.version is not None
        return self._connection.version

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    def close(self, reason: str = "") -> None:
        """Say goodbye and end the connection."""
        raise NotImplementedError

    def _count_answers(self, answers: int, *, is_read: bool) -> None:
        """Count the answers of the connection itself that the peer does not read.

        It would be wrong to stop reading until the peer reads again: two nodes that send each other
        much data would then wait for each other for ever.

        Raises:
            RemoteProtocolError: the peer asks and never reads the answers.
        """
        self._unread_answers = 0 if is_read else self._unread_answers + answers
        if self._unread_answers > self._limits.unread_answers:
            raise RemoteProtocolError("The other computer asks and does not read the answers.")


def open_links(identity: Identity) -> Iterator[PeerLink]:
    """All open connections of this process with members of the identity's homes, of whatever purpose."""
    for each in identity.watching():
        if isinstance(each, PeerLink) and not each.is_closed:
            yield each


def end_avoided(links: Iterable[PeerLink], own: Collection[Interface]) -> None:
    """End the connections in networks that are not used: each end finds the other one in those that are."""
    for link in tuple(links):
        if is_avoided(link.remote.host, own):
            link.close("It uses another network now.")


def fresh(error: PotluckError) -> PeerLostError:
    """A new copy of the error that ended the connection, so that each caller raises its own."""
    lost = PeerLostError(error.message)
    lost.data = error.data
    lost.__cause__ = error
    return lost
