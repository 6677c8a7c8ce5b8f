"""Which computers had too little memory in the last load, for their cards. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from potluck.cluster.events import ComputerLost
from potluck.cluster.master.vocabulary import Event, Failed, Loaded, LoadWish, UnloadWish, Wished
from potluck.errors import OutOfMemoryError, PotluckError
from potluck.ids import NodeId
from potluck.wire.messages import DeviceInfo

_MORE: Final = 0.1  # of all its memory: so much more than at its fullest is another state of it


class Shortages:
    """Remembers them until they may have enough again, or nothing is to be loaded any more.

    That is when they have loaded something, lend more memory than at their fullest since, or are lost and may
    come again; and when another model is asked for, or none.
    """

    def __init__(self) -> None:
        self._least: dict[NodeId, float] = {}  # bytes that each has lent since; inf: none were seen

    @property
    def nodes(self) -> frozenset[NodeId]:
        """The computers."""
        return frozenset(self._least)

    def heard(self, event: Event, used: Iterable[NodeId]) -> None:
        """Hear an event of the master.

        Args:
            event: what happened.
            used: the computers of the deployment that there is now.
        """
        match event:
            case Wished(wish=LoadWish() | UnloadWish()):
                self._least.clear()
            case Failed(error=PotluckError() as error, node_id=str() as node) if _is_memory(error):
                self._least[node] = float("inf")
            case Loaded():
                self._forget(used)
            case ComputerLost(node_id=node):
                self._forget([node])
            case _:
                pass

    def look(self, lent: Mapping[NodeId, Sequence[DeviceInfo]]) -> bool:
        """Look at what the computers lend now, by id. Returns whether one has enough again."""
        enough: set[NodeId] = set()
        for node in self._least.keys() & lent.keys():
            free = sum(device.memory_free for device in lent[node])
            more = _MORE * sum(device.memory_total for device in lent[node])
            if free > self._least[node] + more:
                enough.add(node)
            self._least[node] = min(self._least[node], free)
        self._forget(enough)
        return bool(enough)

    def _forget(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self._least.pop(node, None)


def _is_memory(error: PotluckError) -> bool:
    """Whether a computer, this one or another, says that its memory does not suffice."""
    return OutOfMemoryError.code in (error.code, error.data.get("kind"))
