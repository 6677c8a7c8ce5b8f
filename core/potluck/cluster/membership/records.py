"""What a home keeps of each paired computer: its name and color, and what its owner decided about it."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from potluck.files import write_atomically
from potluck.ids import NodeId
from potluck.wire.handover_messages import Known

logger = logging.getLogger(__name__)

COLORS: Final = 6


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

    def known(self) -> Known:
        """What the home of the next main computer is told."""
        return Known(color=self.color, alias=self.alias, paused=self.paused, memory=self.memory)


def admitted(
    node_id: NodeId, name: str, records: Mapping[NodeId, MemberRecord], known: Known | None
) -> MemberRecord:
    """The record of a computer that was just paired, in a color that no other one has.

    Args:
        node_id: of the computer.
        name: as it calls itself.
        records: of the home.
        known: what the home of the main computer before knew of it.
    """
    before = records.get(node_id) or MemberRecord(node_id=node_id, name=name, color=-1)
    if known is not None:
        before = msgspec.structs.replace(
            before,
            color=known.color,
            alias=known.alias.strip(),
            paused=known.paused,
            memory=known.memory or None,
        )
    taken = {record.color for other, record in records.items() if other != node_id}
    color = before.color
    if color < 0 or color in taken:
        color = next((c for c in range(1, COLORS) if c not in taken), len(taken) % COLORS)
    return msgspec.structs.replace(before, name=name, color=color)


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


def write_records(path: Path, records: Iterable[MemberRecord]) -> None:
    """Write the records of all paired computers."""
    plain = [msgspec.to_builtins(record) for record in records]
    write_atomically(path, msgspec.json.format(msgspec.json.encode(plain)))
