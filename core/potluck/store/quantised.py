"""Caches the digests of quantised matrices, and of slices: which packed bytes each matrix gave.

There is one small file for each model. An entry that is missing is made again, with the same bytes.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from potluck import files
from potluck.ids import ModelId, is_digest
from potluck.model.schemes import PACKING_VERSION


class Packed(msgspec.Struct, frozen=True):
    """The packed bytes of a matrix."""

    digest: str
    nbytes: int


def recall(folder: Path, model: ModelId) -> dict[str, Packed]:
    """Return the cached entries of this model, under the keys that `remember` was given."""
    known = files.recall(_path(folder, model), dict[str, Packed]) or {}
    return {key: packed for key, packed in known.items() if is_digest(packed.digest)}


def remember(folder: Path, model: ModelId, packed: Mapping[str, Packed]) -> None:
    """Add entries to the cache. Only one caller at a time may do this for a model."""
    known = recall(folder, model)
    if not packed.items() <= known.items():
        files.remember(_path(folder, model), {**known, **packed})


def _path(folder: Path, model: ModelId) -> Path:
    return folder / f"{model}-{PACKING_VERSION}.json"
