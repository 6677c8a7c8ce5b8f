"""A worker calls its masters, so that they find it where multicast does not.

A master dials its workers. A worker that has another address than before is found by multicast; where
that is dropped, the master knows only the old address. So a worker that no master is connected with
dials the master for a moment: the address that it calls from and the port of its `hello` say where it is.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from potluck.errors import PotluckError
from potluck.ids import HomeId, NodeId
from potluck.net.advert import Found
from potluck.net.identity import Identity
from potluck.net.link import Link
from potluck.net.transport import dial
from potluck.wire.messages import Address, NodeInfo

logger = logging.getLogger(__name__)

CALL_S: Final = 5.0  # between two calls


class Addresses(Protocol):
    """What is needed of `Discovery`."""

    def peers(self) -> Sequence[Found]: ...
    def remember(self, node_id: NodeId, name: str, addresses: tuple[Address, ...]) -> None: ...


class MasterCalls:
    """Remembers where masters are, and calls those that are not connected."""

    def __init__(
        self, *, identity: Identity, addresses: Addresses, me: Callable[[], NodeInfo]
    ) -> None:
        """Make one that calls when `call` is called.

        Args:
            identity: of this node.
            addresses: where other nodes are.
            me: describes this node to masters, with its port.
        """
        self._identity = identity
        self._addresses = addresses
        self._me = me
        self._connected: Counter[HomeId] = Counter()

    @contextmanager
    def during(self, link: Link) -> Generator[None]:
        """While a master controls this node, it is not called; its address is kept for later."""
        if link.purpose != "control" or link.peer_role != "master":
            yield
            return
        if link.peer.port:
            address = Address(host=link.remote.host, port=link.peer.port)
            self._addresses.remember(NodeId(link.peer.node_id), link.peer.name, (address,))
        self._connected[link.home] += 1
        try:
            yield
        finally:
            self._connected[link.home] -= 1

    async def call(self) -> None:
        """Call each master that is found and not connected, once."""
        found = {peer.node_id: peer.addresses for peer in self._addresses.peers()}
        for home in list(self._identity.homes.values()):
            if home.role == "worker" and not self._connected[home.home_id]:
                await self._call(home.home_id, home.master, found.get(home.master, ()))

    async def _call(self, home: HomeId, master: NodeId, addresses: Sequence[Address]) -> None:
        if not addresses:
            return
        try:
            link = await dial(
                addresses,
                self._identity,
                home=home,
                peer=master,
                purpose="weights",
                me=self._me(),
            )
        except PotluckError as error:
            logger.debug("the main computer does not answer: %s", error)
        else:
            link.close("called")
