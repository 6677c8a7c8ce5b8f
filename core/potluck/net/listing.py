"""Which of the nodes that were announced are listed.

Everybody on the network can announce whatever they like. So the list is bounded, as is the number of
nodes at one address; and while many are listed, a new stranger has to show at its address that it is
the node that it says. Nodes that are listed already or were paired need no room.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from potluck.errors import PotluckError
from potluck.ids import NodeId, short
from potluck.net.addresses import Probe
from potluck.net.advert import MAX_PEERS, Found
from potluck.net.askings import Askings
from potluck.tasks import TaskSet

logger = logging.getLogger(__name__)

CROWD = 64  # so many are listed by their word alone
MAX_PER_HOST = 16  # nodes at one address: one for each user of a computer
MAX_ASKED = 32  # nodes that are asked at the same time

Entry: TypeAlias = tuple[Found, tuple[str, ...], int]
"""A node, with the hosts and the port as received."""


class Listing:
    """The nodes that are listed.

    Args:
        is_paired: whether a node was paired.
        identify: asks which node answers at an address; None: nobody is asked.
        tasks: own what is under way.
        on_change: called whenever the list has changed.
    """

    def __init__(
        self,
        *,
        is_paired: Callable[[NodeId], bool],
        identify: Probe | None,
        tasks: TaskSet,
        on_change: Callable[[], None],
    ) -> None:
        self.nodes: dict[NodeId, Entry] = {}
        self._is_paired = is_paired
        self._identify = identify
        self._on_change = on_change
        self._proving = Askings(tasks, self.is_known, MAX_ASKED)
        self._told: set[NodeId] = set()  # in the log

    def is_known(self, node_id: NodeId) -> bool:
        """Whether the node is listed or was paired: a flood of new names takes nothing from it."""
        return node_id in self.nodes or self._is_paired(node_id)

    def note(self, node_id: NodeId, entry: Entry | None) -> None:
        """Note what a node announces; None: it announces nothing any more."""
        if entry is not None and not self.is_known(node_id):
            if not self._has_room(entry):
                return
            if len(self.nodes) >= CROWD and self._identify is not None:
                if node_id not in self._proving:
                    self._proving.begin(node_id, partial(self._prove, entry, self._identify))
                return
        self._put(node_id, entry)

    def _has_room(self, entry: Entry) -> bool:
        host = entry[0].addresses[0].host
        here = sum(found.addresses[0].host == host for found, _, _ in self.nodes.values())
        return here < MAX_PER_HOST and len(self.nodes) < MAX_PEERS

    async def _prove(self, entry: Entry, identify: Probe, node_id: NodeId) -> None:
        """List a stranger if it is the one that answers at its address."""
        try:
            answering = await identify(entry[0].addresses[0])
        except PotluckError as error:
            logger.debug("a stranger does not answer node=%s: %s", short(node_id), error)
            return
        if answering.node_id == node_id and self._has_room(entry):
            self._put(node_id, entry)

    def _put(self, node_id: NodeId, entry: Entry | None) -> None:
        before = self.nodes.pop(node_id, None)
        if entry is not None:
            self.nodes[node_id] = entry
        if entry == before:
            return
        if (entry is None) != (before is None):
            logger.debug("node %s node=%s", "found" if entry else "gone", short(node_id))
            if entry is not None and node_id not in self._told and len(self._told) < MAX_PEERS:
                self._told.add(node_id)
                logger.info("node found for the first time node=%s", short(node_id))
        self._on_change()
