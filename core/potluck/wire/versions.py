"""The protocol versions that this program speaks, the choice of a common one, and what older programs cannot do.

A program of an older version ignores what it does not know, and computes something else. So it is never asked: plans
leave its computer out, and what would be sent all the same is refused with a sentence before anything is sent.
"""

from collections.abc import Sequence
from typing import Final

from potluck.errors import VersionMismatchError
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.model.tensor_formats import has_super_blocks
from potluck.wire.messages import NodeInfo

PROTOCOL_VERSIONS: Final = (1, 2)
RANKS_SINCE: Final = 2  # an older program would compute all of a layer that it has a share of
READERS_SINCE: Final = 2  # an older one neither sends the caches of prompts nor takes them
PICTURES_SINCE: Final = 2  # an older one has no tower, and would take rows of pictures for text
SUPER_BLOCKS_SINCE: Final = 2  # an older one holds matrices of 4 bits in other bytes


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


def check_age(name: str, version: int, config: ModelConfig, scheme: Scheme) -> None:
    """Refuse to share a model with a program that would compute something else of it.

    Args:
        name: of the other computer.
        version: of the protocol that is spoken with it.
        config: of the model.
        scheme: how its weights are held.

    Raises:
        VersionMismatchError: names the computer to update.
    """
    if version < PICTURES_SINCE and config.tower is not None:
        raise VersionMismatchError(
            f"{name} cannot share a model that sees pictures, since its Potluck is too old. Update it there.",
            computer=name,
        )
    if version < SUPER_BLOCKS_SINCE and has_super_blocks(config, scheme):
        raise VersionMismatchError(
            f"{name} cannot share weights in {scheme}, since its Potluck is too old. Update it there.",
            computer=name,
        )


def _listed(versions: Sequence[int]) -> str:
    return ", ".join(str(version) for version in versions)
