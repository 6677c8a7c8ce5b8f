"""How one token goes through a stage's layers: as few calls as the device allows.

A run is some consecutive layers as one call. On a CPU with packed weights, or of 16 bits, that is a
function generated for them, with CUDA a graph; where there is neither, the layers themselves, one after
the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from potluck.engine.attention import Step
from potluck.engine.blocks import DecoderLayer
from potluck.engine.kernels import Kernels, ReferenceKernels
from potluck.engine.kvcache import LayerCache


class Run(ABC):
    """Layers from `first` on, for one token."""

    @abstractmethod
    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        """(1, D) → (1, D); `caches` are those of all layers of the stage; `x` is not changed."""


class LayerRun(Run):
    """Layers as they are."""

    def __init__(self, first: int, blocks: Sequence[DecoderLayer]) -> None:
        self._first, self._blocks = first, tuple(blocks)

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], step: Step) -> Tensor:
        for block, cache in zip(self._blocks, caches[self._first :], strict=False):
            x = block.forward(x, cache, step)
        return x


def decode_runs(
    blocks: Sequence[DecoderLayer],
    device: torch.device,
    kernels: Kernels | None,
    cache: torch.dtype,
) -> tuple[Run, ...]:
    """Cut the layers into the longest runs that one call can do.

    Args:
        blocks: all layers of the stage.
        device: that they are on.
        kernels: of a CPU, for what is to be generated; None: nothing is.
        cache: the dtype of keys and values.
    """
    if device.type != "cpu":
        from potluck.engine.accelerator import find_graphs, graph_runs  # which imports this module

        graphs = find_graphs(device)
        return (LayerRun(0, blocks),) if graphs is None else graph_runs(blocks, graphs)
    if kernels is None or isinstance(kernels, ReferenceKernels):
        return (LayerRun(0, blocks),)
    # Not before it is needed, nor where it does not load: it brings llvmlite.
    from potluck.engine.generated_run import GeneratedRun, run_shape
    from potluck.engine.kernels.generated import GeneratedKernels

    assert isinstance(kernels, GeneratedKernels)
    runs: list[Run] = []
    first = 0
    for shape, group in groupby(blocks, lambda block: run_shape(block, cache)):
        some = list(group)
        run = LayerRun(first, some)
        if shape is not None:
            run = GeneratedRun(first, some, shape, kernels)
        runs.append(run)
        first += len(some)
    return tuple(runs)
