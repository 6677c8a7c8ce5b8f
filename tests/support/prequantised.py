"""A tiny model whose matrices are packed already, as a master has them in its store."""

import dataclasses
from pathlib import Path

from tiny_models import Reference

from potluck.engine.kernels import best_kernels
from potluck.engine.loading.quantise import quantise
from potluck.engine.loading.reading import StoredTensor
from potluck.model.checkpoint.stored import find_stored
from potluck.model.formats import PackedFormat
from potluck.model.schemes import Scheme
from potluck.model.tensor_formats import tensor_format


def prequantised(reference: Reference, scheme: Scheme, folder: Path) -> Reference:
    """Return the model with all matrices packed already."""
    config, tensors = reference.config, {t.name: t for t in reference.tensors}
    expected = config.stage_tensors(range(config.num_layers), embedding=True, head=True)
    packed: list[StoredTensor] = []
    for index, (name, parts) in enumerate(
        find_stored(config, expected, tensors, where="the test").items()
    ):
        shape = expected[name]
        held = tensor_format(config, name, shape, scheme)
        if not isinstance(held, PackedFormat):
            packed.extend(parts)
            continue
        path = folder / str(index)
        made = quantise(config, (shape[0], shape[1]), held, parts, path, best_kernels())
        stored = StoredTensor(
            name=name, dtype=held.dtype, shape=shape, digest=made.digest, path=path, offset=0,
            nbytes=made.nbytes,
        )  # fmt: skip
        packed.append(stored)
    return dataclasses.replace(reference, tensors=tuple(packed))
