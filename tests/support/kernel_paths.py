"""Tests of the kernels on every path that this processor has, some with those of torch as well."""

import pytest
import torch
from torch import Tensor

from potluck.engine.kernels import Kernels, ReferenceKernels
from potluck.engine.kernels.generated import GeneratedKernels, host_paths

BEST = host_paths()[0]
REFERENCE = ReferenceKernels()
_GENERATED: dict[str, Kernels] = {path.name: GeneratedKernels(path) for path in host_paths()}
_ALL = {**_GENERATED, "reference": REFERENCE}

every_path = pytest.mark.parametrize("path", host_paths(), ids=lambda path: path.name)
every_generated = pytest.mark.parametrize("kernels", _GENERATED.values(), ids=_GENERATED)
every_kernels = pytest.mark.parametrize("kernels", _ALL.values(), ids=_ALL)


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers, the same ones for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
