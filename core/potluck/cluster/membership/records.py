"""What a home keeps of each paired computer: its name and color, and what its owner decided about it."""

import logging
from pathlib import Path

import msgspec

from potluck.ids import NodeId

logger = logging.getLogger(__name__)


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored about a paired computer."""

    node_id: str
    name: str
    color: int = 0  # number of its color in all views, for as long as it is paired
    alias: str = ""  # what its home calls it; "": as it calls itself
    paused: bool = False  # its home leaves it out of plans
    memory: int | None = None  # bytes of each device that plans use at most

    @property
    def shown(self) -> str:
        return self.alias or self.name


def read_records(path: Path) -> dict[NodeId, MemberRecord]:
    """Read the records. A damaged file loses only names and colors: certificates are elsewhere."""
    try:
        records = msgspec.json.decode(path.read_bytes(), type=list[MemberRecord])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError:
        logger.exception("the list of paired computers is damaged path=%s", path)
        return {}
    return {NodeId(record.node_id): record for record in records}
