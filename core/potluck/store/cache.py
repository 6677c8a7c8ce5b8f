"""Small JSON files that a node can do without: one that is missing or damaged counts as empty."""

import logging
from pathlib import Path
from typing import TypeVar

import msgspec

from potluck.files import write_atomically

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def recall(path: Path, kind: type[_T]) -> _T | None:
    """What the file holds; None: it is missing, damaged or of another form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):  # msgspec's errors and bad UTF-8 are ValueErrors
        return None


def remember(path: Path, value: object) -> None:
    """Replace the file. A full disk is logged, and no error."""
    try:
        write_atomically(path, msgspec.json.encode(value))
    except OSError as error:
        logger.warning("not remembered file=%s error=%s", path.name, error)
