"""Which computers had too little memory in the last load, for their cards. Pure."""

from collections.abc import Iterable

from potluck.cluster.master.vocabulary import Event, Failed, Loaded, LoadWish, Wished
from potluck.errors import OutOfMemoryError, PotluckError
from potluck.ids import NodeId


class Shortages:
    """Remembers them until they have loaded something, or another model is asked for.

    Attributes:
        nodes: the computers.
    """

    def __init__(self) -> None:
        self.nodes: frozenset[NodeId] = frozenset()

    def heard(self, event: Event, used: Iterable[NodeId]) -> None:
        """Hear an event of the master.

        Args:
            event: what happened.
            used: the computers of the deployment that there is now.
        """
        match event:
            case Wished(wish=LoadWish()):
                self.nodes = frozenset()
            case Failed(error=PotluckError() as error, node_id=str() as node) if _is_memory(error):
                self.nodes |= {node}
            case Loaded():
                self.nodes -= frozenset(used)
            case _:
                pass


def _is_memory(error: PotluckError) -> bool:
    """Whether a computer, this one or another, says that its memory does not suffice."""
    return OutOfMemoryError.code in (error.code, error.data.get("kind"))
