"""What is kept of a change of the main computer, over restarts."""

import logging
from pathlib import Path

import msgspec

from potluck.api.values.schema import Became
from potluck.ids import HomeId, NodeId

logger = logging.getLogger(__name__)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a change of the main computer."""

    became: Became
    other: NodeId  # the main computer before this one, or after it
    name: str  # of the other
    home: HomeId  # that was handed over
    is_news: bool = True  # nobody here has chosen its role since
    helpers: tuple[NodeId, ...] = ()  # who was named to this computer, which became main
    is_left: bool = False  # this computer is not of the home any more: nobody gets a token by it


def read_record(file: Path) -> Record | None:
    """What was kept. A damaged file is as none: roles and homes are kept elsewhere."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError):
        logger.exception("what was kept of a change of the main computer cannot be read")
        return None
