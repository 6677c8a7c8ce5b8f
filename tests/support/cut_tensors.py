"""Stored tensors as the slices that a rank is sent."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from potluck.engine.loading.reading import StoredTensor
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.model.shares import Share
from potluck.model.stored_slices import stage_slices, stored_slice
from potluck.store.source import TensorSource


def cut(
    tensors: Iterable[StoredTensor],
    config: ModelConfig,
    share: Share,
    scheme: Scheme,
    folder: Path | None = None,
) -> tuple[StoredTensor, ...]:
    """These tensors, as a rank's slices where it has any: in files of a folder, or (None) within their files."""
    slices = stage_slices(config, range(config.num_layers), share, scheme)
    found: list[StoredTensor] = []
    for tensor in tensors:
        part = slices.get(tensor.name)
        one = part and stored_slice(config, tensor.name, part, tensor.dtype, tuple(tensor.shape))
        if one is None:
            found.append(tensor)
            continue
        source = TensorSource(
            path=tensor.path, offset=tensor.offset, nbytes=one.nbytes, runs=one.runs
        )
        place = {"runs": one.runs}
        if folder is not None:
            file = folder / source.digest()
            file.write_bytes(source.read(0, one.nbytes))
            place = {"path": file, "offset": 0}
        cuts = {"shape": one.shape, "nbytes": one.nbytes, "digest": source.digest()}
        found.append(replace(tensor, is_slice=True, **cuts, **place))
    return tuple(found)
