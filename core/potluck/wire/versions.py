"""The protocol versions that this program speaks, and the choice of a common one."""

from collections.abc import Sequence
from typing import Final

from potluck.errors import VersionMismatchError
from potluck.wire.messages import NodeInfo

PROTOCOL_VERSIONS: Final = (1, 2)
RANKS_SINCE: Final = 2  # an older program would compute all of a layer that it has a share of


def common_version(me: NodeInfo, mine: Sequence[int], peer: NodeInfo, theirs: Sequence[int]) -> int:
    """The highest version that both speak.

    Raises:
        VersionMismatchError: there is none; both users read the message.
    """
    if common := set(mine) & set(theirs):
        return max(common)
    older = me if max(mine) < max(theirs) else peer
    raise VersionMismatchError(
        f"{me.name} runs Potluck {me.version} (protocol {_listed(mine)}) and {peer.name} runs"
        f" Potluck {peer.version} (protocol {_listed(theirs)}), which do not understand each other."
        f" Update Potluck on {older.name}.",
        mine=_listed(mine),
        theirs=_listed(theirs),
    )


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(str(version) for version in versions)
