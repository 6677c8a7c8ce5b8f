"""Caches the digests of quantised matrices: which packed bytes each matrix gave.

There is one small file for each model. The cache only saves time: an entry that is missing, damaged
or out of date is made again, with the same bytes.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from potluck.files import write_atomically
from potluck.ids import ModelId, is_digest, short
from potluck.model.schemes import PACKING_VERSION

logger = logging.getLogger(__name__)


class Packed(msgspec.Struct, frozen=True):
    """The packed bytes of a matrix."""

    digest: str
    nbytes: int


def recall(folder: Path, model: ModelId) -> dict[str, Packed]:
    """Return the cached entries of this model, under the keys that `remember` was given."""
    try:
        data = _path(folder, model).read_bytes()
        known = msgspec.json.decode(data, type=dict[str, Packed])
    except (OSError, ValueError):  # msgspec's errors and bad UTF-8 are ValueErrors
        return {}
    return {key: packed for key, packed in known.items() if is_digest(packed.digest)}


def remember(folder: Path, model: ModelId, packed: Mapping[str, Packed]) -> None:
    """Add entries to the cache. Only one caller at a time may do this for a model."""
    known = recall(folder, model)
    if packed.items() <= known.items():
        return
    try:
        write_atomically(_path(folder, model), msgspec.json.encode({**known, **packed}))
    except OSError as error:  # a full disk only makes the next load slower
        logger.warning("packed tensors not remembered model=%s error=%s", short(model), error)


def _path(folder: Path, model: ModelId) -> Path:
    return folder / f"{model}-{PACKING_VERSION}.json"
