"""Tests of the kernels on every path that this processor has, some with those of torch as well."""

import pytest
import torch
from torch import Tensor

from potluck.engine.kernels import Kernels, ReferenceKernels
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths

BEST = host_paths()[0]
REFERENCE = ReferenceKernels()
_GENERATED: dict[str, Kernels] = {path.name: GeneratedKernels(path) for path in host_paths()}
_ALL: dict[str, Kernels] = {**_GENERATED, "reference": REFERENCE}


def on_path(name: str, *values: object, case: str = "") -> object:
    """A case of a test on this path. Compiling for a path takes long; the fast tier has the best one."""
    marks = () if name in (BEST.name, "reference") else pytest.mark.slow
    return pytest.param(*values, id=f"{name}-{case}" if case else name, marks=marks)


every_path = pytest.mark.parametrize("path", [on_path(path.name, path) for path in host_paths()])
every_generated = pytest.mark.parametrize(
    "kernels", [on_path(*each) for each in _GENERATED.items()]
)
every_kernels = pytest.mark.parametrize("kernels", [on_path(*each) for each in _ALL.items()])


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers, the same ones for a seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
